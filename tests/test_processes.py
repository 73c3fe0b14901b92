"""Workers end with their parent: on Ctrl-C, while they start or while they work, and when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

PARENT = textwrap.dedent(
    """
    import sys, time
    from sparsesim.processes import worker_processes

    if __name__ == "__main__":
        try:
            with worker_processes([2]) as (pool,):
                waiting = [pool.submit(time.sleep, 60.0) for _ in range(8)]
                print(*pool._processes, flush=True)
                waiting[0].result()
        except KeyboardInterrupt:
            sys.exit(130)
    """
)


def alive(pid: int) -> bool:
    """Whether a process runs (one that nobody has waited for yet does not)."""
    try:
        with open(f"/proc/{pid}/stat") as handle:
            return handle.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], within: float = 10.0) -> bool:
    end = time.monotonic() + within
    while time.monotonic() < end:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")
@pytest.mark.parametrize("delay", [0.0, 1.5], ids=["starting", "working"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_parent(tmp_path, how, delay):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(workers) == 2
    time.sleep(delay)
    if how == signal.SIGINT:
        os.killpg(parent.pid, how)  # as a terminal does: to the workers, too
    else:
        parent.send_signal(how)
    _, errors = parent.communicate(timeout=20)
    assert parent.returncode == (130 if how == signal.SIGINT else -how)
    assert "Traceback" not in errors
    assert gone(workers)


def test_validate_stops_at_an_interrupt(tmp_path):
    table = tmp_path / "many.csv"
    header = "gpu,library,m,n,k,batch,dtype,acc_dtype,pattern,sparse_operand,time_us,timing,l2,clock,set,source\n"
    rows = "".join(
        f"a100_pcie_80gb,best of search,{2048 + 64 * i},4096,8192,1,f16,f32,2:4,A,100,stream,warm,free,,test\n"
        for i in range(400)
    )
    table.write_text(header + rows)
    out = tmp_path / "out.json"
    run = subprocess.Popen(
        [sys.executable, "-m", "sparsesim", "validate", str(table), "--json", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    time.sleep(6.0)
    assert run.poll() is None
    os.killpg(run.pid, signal.SIGINT)
    _, errors = run.communicate(timeout=20)
    assert run.returncode == 130
    assert errors.splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == [table]
