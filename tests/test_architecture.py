"""The imports, read from the sources: one direction, and each heavy library in its one place."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "sparsesim"
MODULES = sorted(PACKAGE.rglob("*.py"))

#: parts of the package, lowest first: a part imports itself and what stands before it
LAYERS = (
    "_version",
    "errors",
    "schemas",
    "units",
    "wording",
    "textfiles",
    "outfiles",
    "datafiles",
    "processes",
    "sparsity",
    "workload",
    "weights",
    "importers",
    "hardware",
    "kernels",
    "device",
    "protocol",
    "stacks",
    "overheads",
    "audit",
    "lowering",
    "results",
    "results_workload",
    "simulator",
    "runtime",
    "chrometrace",
    "attribution",
    "counters",
    "impact",
    "measured",
    "measure",
    "backends",
    "profiles",
    "uncertainty",
    "confidence",
    "report",
    "validate",
    "live",
    "profile_check",
    "microbench",
    "serving",
    "quality",
    "replay",
    "gates",
    "calibrate",
    "scenarios",
    "diagnose",
    "figures",
    "sweep",
    "api",
    "studies",
    "explore",
    "cli",
    "__main__",
)

#: library -> the only places (prefixes of paths in the package) that may import it
HOMES = {
    "numba": ("device/engine.py",),
    "simpy": ("runtime.py", "device/twin.py", "serving/engine.py"),
    "matplotlib": ("figures",),
    "pydantic": ("hardware/", "replay/", "stacks/", "sweep/parameters.py", "diagnose/fields.py", "quality/record.py"),
    "pydantic_core": ("hardware/", "replay/", "stacks/"),
    "typer": ("cli/", "__main__.py"),
    "rich": ("cli/",),
    "jinja2": ("diagnose/page.py", "report/"),
    "torch": ("backends/", "importers/", "quality/lm.py", "quality/smollm_study.py"),
    "pynvml": ("backends/",),
    "starlette": ("explore/server.py", "cli/explore.py"),
    "uvicorn": ("explore/server.py", "cli/explore.py"),
}

#: libraries that every installation has; others are optional, and imported by the function that needs them
REQUIRED = {*HOMES, "numpy", "sparsesim"} - {"torch", "pynvml", "starlette", "uvicorn"}

MAX_LINES = 600
#: Numba's disk cache does not notice an edit in another file, so all jitted code is in one
LONG = {"device/engine.py": 900}


def part_of(path: Path) -> str:
    """Part of the package that a module belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def is_type_checking(node: ast.AST) -> bool:
    """Whether `node` is ``if TYPE_CHECKING:``, whose body never runs."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports(path: Path, deep: bool = True) -> Iterator[tuple[str, int]]:
    """(dotted module, line) of each import that can run; with `deep` also those inside functions."""

    def visit(node: ast.AST) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            if is_type_checking(child):
                continue
            if isinstance(child, ast.Import):
                yield from ((alias.name, child.lineno) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}:{child.lineno}: expected an absolute import"
                if child.module == "sparsesim":
                    yield from ((f"sparsesim.{alias.name}", child.lineno) for alias in child.names)
                else:
                    yield child.module or "", child.lineno
            elif deep or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from visit(child)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")))


def id_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=id_of)
def test_each_library_is_imported_in_its_place_only(path):
    for module, line in imports(path):
        homes = HOMES.get(module.partition(".")[0])
        if homes is not None:
            assert id_of(path).startswith(homes), f"{path}:{line}: {module} belongs in {' or '.join(homes)}"


@pytest.mark.parametrize("path", MODULES, ids=id_of)
def test_optional_libraries_are_imported_where_they_are_needed(path):
    import sys

    for module, line in imports(path, deep=False):
        top = module.partition(".")[0]
        assert top in REQUIRED or top in sys.stdlib_module_names, f"{path}:{line}: {module} at module level"


@pytest.mark.parametrize("path", MODULES, ids=id_of)
def test_imports_run_one_way(path):
    own = part_of(path)
    if own == "__init__":
        assert {module for module, _ in imports(path) if module.startswith("sparsesim")} == {"sparsesim._version"}
        return
    assert own in LAYERS, f"{own}: give the new part its place in LAYERS"
    for module, line in imports(path):
        if not module.startswith("sparsesim."):
            continue
        other = module.split(".")[1]
        assert other in LAYERS, f"{path}:{line}: import from the module that defines it, not from {module}"
        assert LAYERS.index(other) <= LAYERS.index(own), f"{path}:{line}: {own} must not know {other}"


@pytest.mark.parametrize("path", MODULES, ids=id_of)
def test_a_module_can_be_read_in_one_sitting(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONG.get(id_of(path), MAX_LINES)


def test_the_table_of_layers_has_no_stale_entry():
    assert set(LAYERS) - {"figures"} <= {part_of(path) for path in MODULES}
