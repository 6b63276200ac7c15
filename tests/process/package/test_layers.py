"""Imports point in one direction, and a cold stage imports no heavy library."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "sie_triton"

# Every room may import these.
EVERYWHERE = {"arrays", "names"}
FOUNDATION = {"contract", "errors", "extension", "host", "measurements", "nearest", "serving", "spec"}
MAY_IMPORT = {
    "arrays": set(),
    "names": set(),
    "printing": set(),
    "host": {"errors"},
    "serving": set(),
    "error_prefix": {"errors"},
    "errors": set(),
    "extension": {"errors"},
    "measurements": {"host"},
    "nearest": set(),
    "shared_calls": set(),
    "spec": set(),
    "validation": set(),
    "yaml_reader": set(),
    "native": {"host"},
    "transforms": {"native", "spec"},
    "contract": {"errors", "spec", "transforms"},
    "loras": {"contract", "errors", "host", "spec"},
    "telemetry": {"errors"},
    "settings": {"errors", "host", "nearest", "spec", "telemetry", "validation", "yaml_reader"},
    "checkpoints": {"errors"},
    "weights": {"checkpoints", "errors", "host", "processes", "spec"},
    "inputs": {*FOUNDATION, "checkpoints", "pdf"},
    "pdf": {"errors", "processes"},
    "engines": {*FOUNDATION, "checkpoints", "native"},
    "families": {*FOUNDATION, "checkpoints", "engines", "inputs", "processes", "transforms"},
    "environments": {"errors", "host", "printing"},
    "catalog": {
        *FOUNDATION,
        "checkpoints",
        "environments",
        "families",
        "loras",
        "validation",
        "weights",
        "yaml_reader",
    },
    "scheduling": {*FOUNDATION, "native"},
    "render": {
        *FOUNDATION,
        "catalog",
        "environments",
        "families",
        "loras",
        "scheduling",
        "settings",
        "weights",
    },
    "processes": {"errors", "host"},
    "records": {"errors", "processes", "serving", "spec"},
    "worker": {
        *FOUNDATION,
        "checkpoints",
        "engines",
        "environments",
        "families",
        "inputs",
        "processes",
        "scheduling",
        "telemetry",
    },
    "stages": {
        *FOUNDATION,
        "checkpoints",
        "environments",
        "error_prefix",
        "families",
        "inputs",
        "loras",
        "processes",
        "records",
        "scheduling",
        "telemetry",
        "weights",
        "worker",
    },
    "controller": {
        *FOUNDATION,
        "loras",
        "native",
        "printing",
        "processes",
        "records",
        "settings",
        "telemetry",
        "worker",
    },
    "server": {
        *FOUNDATION,
        "catalog",
        "doors",
        "engines",
        "environments",
        "families",
        "native",
        "printing",
        "processes",
        "records",
        "render",
        "settings",
        "telemetry",
        "weights",
    },
    "client": {"contract", "error_prefix", "errors", "transforms"},
    "doors": {
        "client",
        "contract",
        "errors",
        "families",
        "processes",
        "records",
        "serving",
        "settings",
        "shared_calls",
        "spec",
        "telemetry",
    },
    "perf": {"client", "errors", "printing"},
    "evals": {"catalog", "client", "doors", "errors", "printing", "spec", "transforms", "weights", "yaml_reader"},
    "cluster": {
        "catalog",
        "client",
        "contract",
        "controller",
        "doors",
        "error_prefix",
        "errors",
        "host",
        "printing",
        "processes",
        "records",
        "server",
        "serving",
        "settings",
        "shared_calls",
        "telemetry",
        "weights",
    },
    "cli": {
        *FOUNDATION,
        "catalog",
        "client",
        "cluster",
        "controller",
        "environments",
        "evals",
        "perf",
        "printing",
        "processes",
        "render",
        "server",
        "settings",
        "telemetry",
        "weights",
    },
}


@cache
def imports_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    return frozenset(modules)


def layer(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


FILES = sorted(path for path in PACKAGE.rglob("*.py") if layer(path) != "__init__")


def test_imports_point_one_way():
    wrong = {}
    for path in FILES:
        ours = {name.split(".")[1] for name in imports_of(path) if name.startswith("sie_triton.")}
        if more := ours - MAY_IMPORT[layer(path)] - EVERYWHERE - {layer(path)}:
            wrong[str(path.relative_to(PACKAGE))] = sorted(more)
    assert wrong == {}


def test_no_two_files_import_each_other():
    """Imports have a topological order: there are no cycles of any length."""
    known = {module_of(path) for path in FILES}
    left = {module_of(path): modules_of(path, known) for path in FILES}
    while free := [name for name, needed in left.items() if not needed & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"in a circle: {sorted(left)}"


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def modules_of(path: Path, known: set[str]) -> set[str]:
    """Return our modules, of those that are `known`, that a file imports at module level."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (named | {node.module}) & known if named & known else {node.module} & known
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
    # `from package import module` does not depend on the package itself.
    return found - {module_of(path)} - {name for name in found if any(other.startswith(f"{name}.") for other in found)}


def test_the_controller_imports_neither_adapters_nor_torch():
    assert imported("import sie_triton.controller.run", "torch", "transformers", "sie_triton.families") == []


def test_the_door_imports_no_heavy_library():
    assert imported("import sie_triton.doors.run", "torch", "transformers", "tokenizers", "PIL", "aiohttp") == []


def test_no_command_waits_for_the_libraries_of_another():
    assert imported("import sie_triton.cli.main", "torch", "tritonclient", "httpx", "aiohttp") == []


def test_the_quick_tests_need_no_pytorch():
    tests = Path(__file__).parents[2]
    files = sorted((tests / "pure").rglob("test_*.py"))
    modules = [".".join(path.relative_to(tests.parent).with_suffix("").parts) for path in files]
    code = f"from importlib import import_module; [import_module(each) for each in {modules!r}]"
    assert imported(code, "torch", "transformers", "sentence_transformers") == []


def test_one_file_imports_tritons_python_api():
    users = [path for path in FILES if any("triton_python_backend" in name for name in imports_of(path))]
    assert [str(path.relative_to(PACKAGE)) for path in users] == ["stages/triton.py"]


def imported(code: str, *modules: str) -> list[str]:
    """Return the `modules` that a fresh interpreter has loaded after `code`."""
    program = f"import sys; {code}; print(*[m for m in {modules!r} if m in sys.modules])"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


STAGES = [f"sie_triton.stages.{name}" for name in ("preprocess", "inference", "postprocess")]


@pytest.mark.parametrize("module", [*STAGES, "sie_triton.families"])
def test_a_cold_stage_imports_no_heavy_library(module):
    assert imported(f"import {module}", "torch", "transformers", "pydantic", "tritonclient") == []


def test_the_client_imports_only_numpy_and_tritonclient():
    code = "from sie_triton import SIEClient; SIEClient('http://x:1')"
    assert imported(code, "torch", "transformers", "pydantic", "yaml", "click", "tokenizers") == []
