"""Whatever value stands in a field of a run, a quality file or a policy: a result, or a `UserError`; never another
exception, and never a number in the output that JSON cannot hold."""

import copy
import json

import pytest

from sparsesim.__main__ import main
from sparsesim.diagnose import read_run
from sparsesim.diagnose.quality import compare_quality
from sparsesim.diagnose.quality import read_quality as read_own_quality
from sparsesim.errors import UserError
from sparsesim.gates import judge, load_policy
from sparsesim.quality.guardrail import Allowance, check
from sparsesim.quality.record import parse_quality

HUGE = 10**400  # JSON and TOML have integers of any length
ODD = [
    None, True, -1, 0, 1, 1.5, HUGE, -HUGE, float("nan"), float("inf"), 1e308, 5e-324, "", "x", "2:4", "\0", "a\nb",
    "é\u202e", [], [[]], [1], ["a"], {}, {"a": 1},
]  # fmt: skip
QUALITY = {
    "format": "sparsesim quality 1",
    "study": "ours",
    "entries": [
        {"model": "a", "metric": "acc", "better": "higher", "samples": [[1, 0, 1, 1], [1, 1, 1, 0]]},
        {"model": "a", "metric": "ppl", "task": "t2", "better": "lower", "value": 10.0, "low": 9.0, "high": 11.0},
    ],
    "tasks": {"task": {"slices": ["p", "p", "q", "q"], "unit": "sample"}},
}
POLICY = "[[gates]]\nmetric = 'effective_speedup'\nmin = 1.0\nowner = 'o'\nrollback = 'r'\n" + "".join(
    f"[[gates]]\nmetric = '{metric}'\nmax = 1.0\nowner = 'o'\nrollback = 'r'\n"
    for metric in ("fallback_rate", "metadata_overhead", "tensor_occupancy", "quality_drift", "e2e_p95_s")
)


def places(value, path=()):
    """Paths of all values of a document, at most two items of a list."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def broken(document):
    """(path, document) with one value replaced by an odd one, or taken out."""
    for path in places(document):
        if not path:
            continue
        for value in (*ODD, KeyError):
            changed = copy.deepcopy(document)
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            if value is KeyError:
                del inner[path[-1]]
            else:
                inner[path[-1]] = value
            yield path, changed


def attempt(read):
    """What `read` gives, None after a `UserError` of lines."""
    try:
        return read()
    except UserError as error:
        lines = error.problems
    assert lines
    assert all(lines)
    return None


def strict(data):
    """JSON as the standard has it: no NaN and no Infinity."""
    json.dumps(data, allow_nan=False)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "gemm.json"
    args = ["gemm", "--gpu", "a100_pcie_80gb", "-m", "256", "-n", "64", "-k", "256", "--dtype", "f16"]
    assert main([*args, "--json", str(path)]) == 0
    return json.loads(path.read_text())


def test_results_with_odd_fields(result, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    gates = load_policy(policy)
    known = ["time_us", "dense_time_us", "speedup", "path", "pattern", "reason", "baseline", "gpu", "stack", "timing",
             "l2", "clock", "m", "n", "k", "batch", "dtype", "acc_dtype", "name", "provenance", "counters"]  # fmt: skip
    small = {key: result[key] for key in known}
    small |= {"streams": 1, "graph": False, "repeats": 1}
    small["counters"] = {key: result["counters"][key] for key in ("metadata_bytes", "l2_read_bytes", "tensor_busy")}
    path = tmp_path / "run.json"
    for place, document in broken(small):
        path.write_text(json.dumps(document))
        run = attempt(lambda: read_run(path))
        if run is not None:
            assert run.baseline in ("heuristic", "search"), place
            assert all(time > 0 for time in run.recorded), place
        strict(judge(gates, [("run", json.loads(path.read_text()))]).to_dict())


def test_quality_files_with_odd_fields(tmp_path):
    (tmp_path / "base.json").write_text(json.dumps(QUALITY))
    base = read_own_quality(tmp_path / "base.json", {"model": "a"})
    sparse = [{**entry, "pattern": "2:4", "method": "wanda"} for entry in QUALITY["entries"]]
    for _, document in broken(QUALITY):
        (tmp_path / "q.json").write_text(json.dumps(document))
        found = attempt(lambda: read_own_quality(tmp_path / "q.json"))
        if found is not None:
            drifts = attempt(lambda found=found: compare_quality(base, found, 0.01))
            for drift in drifts[0] if drifts else ():
                strict(drift.to_dict())
        entries = document.get("entries")
        if isinstance(entries, list):
            document["entries"] = [*entries, *sparse]
        file = attempt(lambda document=document: parse_quality(document, "q.json"))
        drifts = file and attempt(lambda file=file: check(file, Allowance(0.0)))
        for drift in drifts or ():
            strict(drift.to_dict())


@pytest.mark.parametrize(("key", "value"), [("unit", "Slice"), ("slices", [1, 2, 3, 4]), ("slice", ["p"])])
def test_a_task_that_is_misspelt_is_refused_by_both_readers(tmp_path, key, value):
    document = copy.deepcopy(QUALITY)
    document["tasks"]["task"][key] = value
    (tmp_path / "q.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match=rf"tasks\.task\.{key}"):
        read_own_quality(tmp_path / "q.json", {"model": "a"})
    with pytest.raises(UserError, match=rf"tasks\.task\.{key}"):
        parse_quality(document, "q.json")


def test_a_message_stays_on_its_line_whatever_the_file_says(result, tmp_path, capsys):
    document = {**result, "provenance": {**result["provenance"], "gpu_hash": "a\nb\x1b[31m\u202e"}}
    (tmp_path / "run.json").write_text(json.dumps(document))
    assert main(["diagnose", str(tmp_path / "run.json"), str(tmp_path / "run.json")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert all(line.startswith("error: ") and line.isprintable() for line in lines)


def test_a_conversion_has_a_number_of_launches_that_can_be(tmp_path, capsys):
    run = 'gpu = "a100_pcie_80gb"\n[[gemms]]\nname = "a"\nm = 256\nn = 64\nk = 256\n'
    (tmp_path / "a.toml").write_text(run)
    (tmp_path / "b.toml").write_text(f'{run}[[conversions]]\nop = "a"\nbytes = 1\nlaunches = {HUGE}\n')
    assert main(["diagnose", str(tmp_path / "a.toml"), str(tmp_path / "b.toml")]) == 2
    assert "conversions.0.launches: expected" in capsys.readouterr().err
