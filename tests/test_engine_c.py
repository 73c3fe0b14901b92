"""The loop in C that `make bench` measures against: it has to do the same, or its time says nothing."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import engine_c


def test_the_loop_in_c_ends_with_the_same_arrays():
    try:
        with engine_c.compiled() as run_c:
            for name, plan in engine_c.plans().items():
                assert engine_c.differences(plan, run_c) == [], name
    except engine_c.NoCompilerError as error:
        pytest.skip(str(error))


def test_a_loop_that_differs_is_noticed():
    plan = engine_c.plans()["sparse 4096x2048x1024, cold"]
    other = plan.launch._replace(barrier=plan.launch.barrier + 1)

    def wrong(plan, buffers):
        return engine_c.run(other, buffers, plan.ticks, plan.size)

    assert "stats" in engine_c.differences(plan, wrong)
