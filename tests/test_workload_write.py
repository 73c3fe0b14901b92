"""What importers need of a workload: ops that are no GEMM, sizes that grow with the tokens, and the writer."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparsesim.errors import UserError
from sparsesim.workload import Gemm, OtherOp, Workload, load_workload, write_workload
from sparsesim.workload.write import write_lines

NAMES = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp", "Zs", "Cf", "Cn", "Co"]), min_size=1, max_size=12
)
GEMMS = st.builds(
    Gemm, name=NAMES, m=st.integers(1, 999), n=st.integers(1, 999), k=st.integers(1, 999), batch=st.integers(1, 9),
    dtype=st.sampled_from(["f16", "bf16", "i8"]), pattern=st.sampled_from(["dense", "2:4", "64:2:8"]),
    count=st.integers(1, 99), family=NAMES, kind=st.sampled_from(["linear", "conv", "matmul"]),
)  # fmt: skip
OTHERS = st.builds(
    OtherOp, name=NAMES, op=NAMES, bytes=st.none() | st.integers(0, 2**60), flops=st.none() | st.integers(0, 2**60),
    count=st.integers(1, 99), note=NAMES | st.just(""),
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(GEMMS, min_size=1, max_size=4, unique_by=lambda op: op.name),
    st.lists(OTHERS, max_size=3, unique_by=lambda op: op.name),
    st.sampled_from([".toml", ".jsonl"]),
)
def test_every_workload_reads_back_as_it_was_written(tmp_path, ops, others, suffix):
    workload = Workload("w", 'a "quoted" \\ text', "source", tuple(ops), tuple(others))
    write_workload(workload, tmp_path / f"w{suffix}")
    read = load_workload(tmp_path / f"w{suffix}")
    assert (read.ops, read.others, read.digest()) == (workload.ops, workload.others, workload.digest())
    assert (read.description, read.source) == (workload.description, workload.source)


def test_nothing_is_written_when_writing_stops(tmp_path):
    path = tmp_path / "w.jsonl"
    path.write_text("old\n")

    def lines():
        yield "new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_lines(path, lines())
    assert os.listdir(tmp_path) == ["w.jsonl"]
    assert path.read_text() == "old\n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("w.csv", r"ending in .toml or .jsonl"), ("w.tom", "did you mean '.toml'"), ("no/such/w.toml", "can be written"),
     ("", "a file name"), ("folder.toml", "a folder")],
)  # fmt: skip
def test_a_target_that_cannot_be_written_is_one_line(name, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(UserError, match=expected):
        write_workload(Workload("w", "", "", (Gemm("a", 1, 1, 1),)), name)


HEAD = '[phases]\nprefill = [4]\ndecode = [2]\n[[layers]]\nname = "a"\nm = 8\nk = 8\n'


def toml(tmp_path, text):
    path = tmp_path / "w.toml"
    path.write_text(text)
    return path


def test_sizes_that_grow_with_the_tokens(tmp_path):
    text = HEAD + (
        '[[layers]]\nname = "scores"\nm = "tokens"\nk = 16\nbatch = 2\nphases = ["prefill"]\nkind = "matmul"\n'
        '[[layers]]\nname = "decoded"\nm = 64\nn = 1\nk = 16\nbatch_per_unit = 3\nphases = ["decode"]\n'
        '[[layers]]\nname = "routed"\nm = 8\nk = 8\nexperts = 8\nexperts_per_token = 2\n'
        '[[others]]\nname = "softmax"\nop = "softmax"\nbytes = [1, 10, 100]\nflops = 7\ncount = 3\n'
        'phases = ["prefill"]\n'
    )
    loaded = load_workload(toml(tmp_path, text))
    ops = {op.name: op for op in loaded.ops}
    assert (ops["prefill-4/scores"].m, ops["prefill-4/scores"].n, ops["prefill-4/scores"].batch) == (4, 4, 2)
    assert (ops["decode-2/decoded"].batch, ops["decode-2/decoded"].n) == (6, 1)
    # 4 tokens with 2 of 8 experts each reach 8 (1 - 0.75^4) = 5.5 of them
    assert (ops["prefill-4/routed"].batch, ops["prefill-4/routed"].n) == (5, 2)
    (softmax,) = loaded.others
    assert (softmax.name, softmax.bytes, softmax.flops, softmax.count) == ("prefill-4/softmax", 1 + 40 + 1600, 7, 3)
    # a product of two computed operands has no weight that could take a pattern
    sparse = {op.name: op.pattern for op in load_workload(tmp_path / "w.toml", pattern="2:4").ops}
    assert (sparse["prefill-4/scores"], sparse["prefill-4/a"]) == ("dense", "2:4")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[[layers]]\nname = "b"\nm = "tokns"\nk = 8\n', "layers[1].m: expected a positive integer"),
        ('[[layers]]\nname = "b"\nm = 8\nk = 8\nbatch_per_unit = 0\n', "layers[1].batch_per_unit: expected a positive"),
        (
            '[[layers]]\nname = "b"\nm = 8\nk = 8\nbatch = 2\nbatch_per_unit = 2\n',
            "one of batch, batch_per_unit and experts",
        ),
        ('[[layers]]\nname = "b"\nm = 8\nk = 8\nexperts = 2\n', "expected experts and experts_per_token together"),
        (
            '[[layers]]\nname = "b"\nm = 8\nk = 8\nexperts = 2\nexperts_per_token = 3\n',
            "expected at most the 2 experts",
        ),
        ('[[layers]]\nname = "b"\nm = 8\nk = 8\nn = 2\nexperts = 2\nexperts_per_token = 1\n', "no n and no n_per_unit"),
        ('[[others]]\nname = "x"\n', "others[0]: expected a field op"),
        ('[[others]]\nname = "x"\nop = "y"\nbytes = -1\n', "others[0].bytes: expected a count, or a list"),
        ('[[others]]\nname = "x"\nop = "y"\nflops = [1, 2, 3, 4]\n', "others[0].flops: expected a count, or a list"),
        ('[[others]]\nname = "x"\nop = "y"\nbyts = 1\n', "others[0].byts: expected one of"),
        ('[[others]]\nname = "x"\nop = "y"\ncount = 0\n', "count: expected a positive integer, found 0"),
        ('[[others]]\nname = "x"\nop = "y"\nphases = ["x"]\n', "others[0].phases[0]: expected one of prefill, decode"),
        (
            '[[others]]\nname = "x"\nop = "y"\n[[others]]\nname = "x"\nop = "z"\n',
            "others[1].name: expected a unique name",
        ),
        (
            '[[others]]\nname = "x"\nop = "y"\nbytes = [0, 0, 9000000000000000000]\n',
            "bytes: expected an integer from 0",
        ),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_place(text, expected, tmp_path):
    with pytest.raises(UserError) as caught:
        load_workload(toml(tmp_path, HEAD + text))
    assert any(expected in line for line in caught.value.problems), caught.value.problems


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"other": 1}', "line 2: expected the one field other with an object"),
        ('{"other": {"name": "x"}}', "line 2: expected a field op"),
        ('{"other": {"name": "x", "op": "y", "byte": 1}}', "did you mean 'bytes'"),
        ('{"other": {"name": "x", "op": "y", "bytes": 1.5}}', "bytes: expected an integer from 0"),
        ('{"other": {"name": 3, "op": "y"}}', "name: expected printable text"),
        ('{"other": {"name": "x", "op": "y"}, "m": 1}', "line 2: expected the one field other"),
        ('{"other": {"name": "x", "op": "y"}}\n{"other": {"name": "x", "op": "z"}}', "line 3: expected a unique name"),
    ],
)
def test_a_mistake_in_a_trace_is_named_with_its_line(line, expected, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"m": 1, "n": 1, "k": 1}\n' + line + "\n")
    with pytest.raises(UserError) as caught:
        load_workload(path)
    assert any(expected in problem for problem in caught.value.problems), caught.value.problems


def test_the_names_of_other_ops_are_unique_and_count_in_the_digest():
    op, other = Gemm("a", 1, 1, 1), OtherOp("x", "softmax", 1, 2)
    assert Workload("w", "", "", (op,)).digest() != Workload("w", "", "", (op,), (other,)).digest()
    with pytest.raises(UserError, match="others: expected unique names, found 'x'"):
        Workload("w", "", "", (op,), (other, other))
