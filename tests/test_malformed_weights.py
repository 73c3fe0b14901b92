"""Broken and hostile weight files: one clear error, exit 2, nothing half-written; large ones in little memory."""

import io
import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from sparsesim.__main__ import main
from sparsesim.errors import UserError
from sparsesim.importers import import_file
from sparsesim.weights import open_weights
from sparsesim.workload import load_workload

SHARED = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def packed(header, data=b"", length=None):
    """The bytes of a safetensors file with this header, and perhaps a lie about its length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensor(begin=0, end=32, shape=(4, 4), dtype="F16"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def audit(path, out):
    return main(["audit", str(path), "--gpu", "a100_pcie_80gb", "--out", str(out)])


# --- safetensors ---

DATA = bytes(64)
BROKEN = {
    "empty": (b"", "begins with 8 bytes"),
    "short": (b"1234567", "begins with 8 bytes"),
    "only a length": ((100).to_bytes(8, "little"), "header length: expected 2 to 0 bytes"),
    "length beyond the file": (packed({}, length=1 << 40), "header length: expected 2 to"),
    "length of 2**64 - 1": (b"\xff" * 8 + b"{}", "header length: expected"),
    "no JSON": (packed(b"{hello world}"), "expected valid JSON"),
    "no object at all": (packed(b"hello world"), "header: expected a JSON object, which begins with {"),
    "byte-order mark": (packed(b"\xef\xbb\xbf{}"), "header: expected a JSON object, which begins with {"),
    "no UTF-8": (packed(b'{"\xff": 1}'), "expected UTF-8 text"),
    "a list": (packed(b"[]"), "header: expected a JSON object, which begins with {"),
    "deep": (packed(b'{"a":' + b"[" * 100_000), "expected valid JSON"),
    "a name twice": (packed(b'{"a": 1, "a": 2}'), "occurs twice"),
    "no object": (packed({"w": 7}), "w: expected an object with dtype, shape and data_offsets"),
    "unknown type": (packed({"w": tensor(dtype="F17")}, DATA), "w.dtype: expected one of"),
    "negative side": (packed({"w": tensor(shape=(-4, 4))}, DATA), "w.shape: expected a list of sizes"),
    "float side": (packed({"w": tensor(shape=(4.0, 4))}, DATA), "w.shape: expected a list of sizes"),
    "huge side": (packed({"w": tensor(shape=(1 << 62, 1 << 62))}, DATA), "bytes for F16 of shape"),
    "turned offsets": (packed({"w": tensor(32, 0)}, DATA), "w.data_offsets: expected [begin, end]"),
    "wrong size": (packed({"w": tensor(0, 30)}, DATA), "expected 32 bytes for F16 of shape [4, 4], found 30"),
    "overlap": (packed({"a": tensor(0, 32), "b": tensor(16, 48)}, DATA), "they overlap"),
    "same place": (packed({"a": tensor(0, 32), "b": tensor(0, 32)}, DATA), "they overlap"),
    "hole": (packed({"a": tensor(0, 32), "b": tensor(33, 65)}, DATA + b"1"), "a hole"),
    "truncated": (packed({"a": tensor(0, 32), "b": tensor(32, 64)}, DATA[:63]), "the file is truncated"),
    "more data": (packed({"a": tensor(0, 32)}, DATA), "more than the header tells of"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_safetensors_file_is_one_error(case, tmp_path, capsys):
    raw, expected = BROKEN[case]
    path, out = tmp_path / "w.safetensors", tmp_path / "out.jsonl"
    path.write_bytes(raw)
    assert audit(path, out) == 2
    assert main(["import", str(path), "--out", str(out)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"error: {path}") and expected in line for line in lines), lines
    assert os.listdir(tmp_path) == ["w.safetensors"]
    if case != "more data":  # the library lets that pass in some versions
        with pytest.raises((SafetensorError, ValueError, OverflowError)):
            safe_open(str(path), "numpy")


@SHARED
@given(
    st.dictionaries(
        st.text(max_size=5),
        st.fixed_dictionaries(
            {},
            optional={
                "dtype": st.sampled_from(["F16", "F32", "BF16", "F8_E4M3", "F4", "nonsense"]) | st.none(),
                "shape": st.lists(st.integers(-1, 9), max_size=3) | st.text(max_size=2),
                "data_offsets": st.lists(st.integers(-1, 80), max_size=3) | st.integers(),
            },
        )
        | st.none()
        | st.integers(),
        max_size=3,
    ),
    st.binary(max_size=64),
    st.none() | st.integers(0, 2**64 - 1),
)
def test_no_header_gets_past_the_checks(tmp_path, header, data, length):
    path = tmp_path / "w.safetensors"
    path.write_bytes(packed(header, data, length))
    try:
        weights = open_weights(path)
    except UserError:
        return
    # what passes is whole: tensors back to back over exactly the data
    assert weights.nbytes == len(data)
    assert sum(block.size for t in weights.tensors for block in t.blocks([t.size])) == sum(
        t.size for t in weights.tensors
    )


@SHARED
@given(st.integers(0, 10_000), st.integers(1, 255), st.booleans())
def test_a_flipped_byte_or_a_cut_is_found_or_harmless(tmp_path, place, flip, cut):
    path = tmp_path / "w.safetensors"
    save_file({"a": np.ones((16, 16), np.float16), "b": np.ones((4, 8), np.float32)}, path)
    raw = bytearray(path.read_bytes())
    place %= len(raw)
    if cut:
        del raw[place:]
    else:
        raw[place] ^= flip
    path.write_bytes(raw)
    try:
        result = main(["audit", str(path), "--gpu", "rtx4090", "--json", str(tmp_path / "out.json")])
    except UserError:
        pytest.fail("an error left the command")
    assert result == 2 if cut else result in (0, 2)


def test_an_index_cannot_leave_its_folder_or_invent_tensors(tmp_path):
    (tmp_path / "model").mkdir()
    save_file({"a": np.ones((4, 4), np.float16)}, tmp_path / "secret.safetensors")
    save_file({"a": np.ones((4, 4), np.float16)}, tmp_path / "model" / "m.safetensors")
    index = tmp_path / "model" / "model.safetensors.index.json"
    for names, expected in (
        ({"a": "../secret.safetensors"}, "the name of a file in the same folder"),
        ({"a": "/etc/passwd"}, "the name of a file in the same folder"),
        ({"a": "..\\secret.safetensors"}, "the name of a file in the same folder"),
        ({"a": "missing.safetensors"}, "found nothing of that name"),
        ({"b": "m.safetensors"}, "weight_map.b: expected a tensor of m.safetensors"),
        ({"a": 7}, "weight_map: expected an object of file names"),
    ):
        index.write_text(json.dumps({"weight_map": names}))
        with pytest.raises(UserError, match=expected):
            open_weights(index)


# --- npz ---


def npz(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in members.items():
            archive.writestr(f"{name}.npy", raw)
    return path


def npy(array, **more):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **more)
    return file.getvalue()


def lying(shape, dtype, data):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + data


class Evil:
    """A pickle that would leave a file if it were loaded."""

    def __reduce__(self):
        return (open, ("pwned", "w"))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (npy(np.array([Evil()], dtype=object), allow_pickle=True), "a pickle, which is never loaded"),
        (lying((1 << 40, 4), "<f4", b"1234"), "bytes for float32 of shape"),
        (lying((4, 4), "<f4", bytes(60)), "expected 64 bytes for float32 of shape (4, 4), found 60"),
        (lying((4, 4), "<f4", bytes(68)), "expected 64 bytes for float32 of shape (4, 4), found 68"),
        (lying((-4, 4), "<f4", bytes(64)), "expected a shape of sizes"),
        (lying((4,), [("a", "<f4")], bytes(16)), "expected an array of numbers"),
        (lying((4,), "<U3", bytes(48)), "expected an array of numbers"),
        (lying((4, 4), ">f4", bytes(64)), "expected little-endian numbers"),
        (b"\x93NUMPY\x09\x00", "expected an npy header of version 1 or 2"),
        (b"\x93NUMPY\x01\x00\xff\xff{", "expected a sound npy header"),
        (b"hello", "expected a sound npy header"),
        (b"\x93NUMPY\x01\x00\x10\x00{'descr': open()}", "expected a sound npy header"),
    ],
)
def test_a_hostile_npy_inside_an_archive(raw, expected, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = npz(tmp_path / "w.npz", w=raw)
    assert audit(path, tmp_path / "out.jsonl") == 2
    assert expected in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["w.npz"]


def test_a_zip_bomb_is_refused_before_it_expands(tmp_path):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("w.npy", "w") as member:
        np.lib.format.write_array_header_1_0(
            member, {"descr": "<f2", "fortran_order": False, "shape": (1 << 14, 1 << 13)}
        )
        for _ in range(1 << 8):
            member.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(UserError, match="a zip bomb"):
        open_weights(path)


@pytest.mark.parametrize("cut", [0, 3, 0.2, 0.6, 0.95])
def test_a_truncated_archive_is_one_error(cut, tmp_path):
    np.savez_compressed(tmp_path / "w.npz", w=np.random.default_rng(0).random((64, 64)))
    raw = (tmp_path / "w.npz").read_bytes()
    (tmp_path / "w.npz").write_bytes(raw[: int(len(raw) * cut) if isinstance(cut, float) else cut])
    with pytest.raises(UserError) as caught:
        open_weights(tmp_path / "w.npz")
    assert len(caught.value.problems) == 1


@SHARED
@given(st.integers(0, 100_000), st.integers(1, 255))
def test_a_flipped_byte_of_an_archive_is_found_or_harmless(tmp_path, place, flip):
    path = tmp_path / "w.npz"
    np.savez_compressed(path, w=np.arange(256, dtype=np.float32).reshape(16, 16), v=np.ones((4, 4), np.float16))
    raw = bytearray(path.read_bytes())
    raw[place % len(raw)] ^= flip
    path.write_bytes(raw)
    assert main(["audit", str(path), "--gpu", "rtx4090", "--json", str(tmp_path / "out.json")]) in (0, 2)


def test_what_is_no_weight_file_says_what_would_be(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"x")
    for path, expected in (
        (tmp_path / "w.bin", "expected a file ending in .safetensors, .npz"),
        (tmp_path / "none.npz", "found nothing of that name"),
        (tmp_path, "expected safetensors files"),
        ("", "expected a file name"),
    ):
        with pytest.raises(UserError, match=expected):
            open_weights(path)


# --- large ones ---


def peak_mb(*arguments):
    """Peak resident memory of a command [MB]; it must succeed."""
    # VmHWM and not ru_maxrss, which a process takes over from the one that started it
    code = (
        "import re, sys\n"
        "from sparsesim.__main__ import main\n"
        "status = main(sys.argv[1:])\n"
        "print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1], file=sys.stderr)\n"
        "sys.exit(status)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split()[-1]) * 1024 / 1e6


def sparse_checkpoint(path, tensors, rows, k):
    """A checkpoint whose data are a hole in the file: zeros that take no disk."""
    size = 2 * rows * k
    header = {f"l.{i}.weight": tensor(i * size, (i + 1) * size, (rows, k), "BF16") for i in range(tensors)}
    with path.open("wb") as file:
        file.write(packed(header))
        file.truncate(file.tell() + tensors * size)
    return path


def test_a_checkpoint_larger_than_the_memory_it_may_take(tmp_path):
    """800 MB of weights in half of that; `bench/large_inputs.py` runs the 10 GB one."""
    path = sparse_checkpoint(tmp_path / "w.safetensors", 6, 8192, 8192)
    assert path.stat().st_size > 800e6
    assert peak_mb("audit", path, "--gpu", "a100_pcie_80gb", "--json", tmp_path / "a.json") < 400
    assert json.loads((tmp_path / "a.json").read_text())["eligible"] == 6


def profiler_trace(path, events):
    """A profiler trace of so many recorded ops, in the profiler's own indented form (about 25 lines an op)."""
    one = {
        "ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 1, "tid": 1, "ts": 0, "dur": 5,
        "args": {"External id": 1, "Input Dims": [[2, 64, 512], [1024, 512], []], "Input type": ["float", "float", ""]},
    }  # fmt: skip
    with path.open("w") as file:
        file.write('{"schemaVersion": 1,\n"traceEvents": [\n')
        for i in range(events):
            one["ts"] = 10 * i
            one["args"]["Input Dims"][0][0] = 1 + i % 50
            file.write(json.dumps(one, indent=1) + (",\n" if i + 1 < events else "\n"))
        file.write("]}\n")
    return path


def test_long_traces_in_little_memory(tmp_path):
    path = profiler_trace(tmp_path / "trace.json", 20_000)
    with path.open() as file:
        assert sum(1 for _ in file) > 200_000
    assert peak_mb("import", path, "--out", tmp_path / "o.jsonl", "--json", tmp_path / "o.json") < 400
    assert json.loads((tmp_path / "o.json").read_text())["totals"]["gemms"] == 20_000
    trace = tmp_path / "long.jsonl"
    with trace.open("w") as file:
        for i in range(200_000):
            file.write(json.dumps({"name": f"op-{i}", "m": 64, "n": 1 + i % 7, "k": 64}) + "\n")
    assert len(load_workload(trace).ops) == 200_000


def test_a_header_is_imported_without_its_data(tmp_path):
    path = sparse_checkpoint(tmp_path / "w.safetensors", 3, 1 << 15, 1 << 15)
    imported = import_file(path, tokens=7)
    assert {(op.m, op.n, op.k, op.dtype) for op in imported.workload.ops} == {(1 << 15, 7, 1 << 15, "bf16")}
