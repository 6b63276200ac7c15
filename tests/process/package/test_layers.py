"""Imports point in one direction, and a cold stage imports no heavy library."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "sie_triton"

# The rooms, from the ground up, and the rooms below that each may import; all may import errors.py.
MAY_IMPORT = {
    "errors": set(),
    "system": set(),
    "contract": {"system"},
    "checkpoints": set(),
    "settings": {"contract", "system"},
    "records": {"contract", "system"},
    "http": {"settings"},
    "client": {"contract"},
    "engines": {"checkpoints", "contract", "system"},
    "models": {"checkpoints", "contract", "engines", "records", "settings", "system"},
    "pipeline": {"checkpoints", "contract", "engines", "models", "records", "settings", "system"},
    "controller": {"contract", "http", "models", "records", "settings", "system"},
    "doors": {"client", "contract", "engines", "http", "models", "records", "settings", "system"},
    "server": {"contract", "doors", "engines", "models", "pipeline", "records", "settings", "system"},
    "cluster": {
        "client",
        "contract",
        "controller",
        "doors",
        "http",
        "models",
        "records",
        "server",
        "settings",
        "system",
    },
    "cli": {
        *("client", "cluster", "contract", "controller", "doors"),
        *("models", "pipeline", "records", "server", "settings", "system"),
    },
}
# The same for folders and modules of one room; `limits.py` of a room stands below all.
WITHIN = {
    "system": {"native": {"host"}, "processes": {"host"}},
    "models": {"catalog": {"environments", "families", "known_loras", "weights"}, "families": {"inputs"}},
    "pipeline": {"render": {"scheduling"}, "worker": {"scheduling"}, "stages": {"scheduling", "worker"}},
}


@cache
def imports_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    return frozenset(modules)


def place(path: Path) -> list[str]:
    """Return a file's room, and its folder or module within that room."""
    return [part.removesuffix(".py") for part in path.relative_to(PACKAGE).parts]


FILES = sorted(path for path in PACKAGE.rglob("*.py") if place(path)[0] != "__init__")


def ours_of(path: Path) -> list[list[str]]:
    """Return what a file imports from this package, as parts of names."""
    return [name.split(".")[1:] for name in imports_of(path) if name.startswith("sie_triton.")]


def test_imports_of_rooms_point_down():
    wrong = {}
    for path in FILES:
        room = place(path)[0]
        if more := {name[0] for name in ours_of(path)} - MAY_IMPORT[room] - {room, "errors"}:
            wrong[str(path.relative_to(PACKAGE))] = sorted(more)
    assert wrong == {}


def test_a_room_imports_only_what_stands_before_it():
    above = {room: MAY_IMPORT[room] - set(list(MAY_IMPORT)[:number]) for number, room in enumerate(MAY_IMPORT)}
    assert not any(above.values())


@pytest.mark.parametrize("room", WITHIN)
def test_imports_within_a_room_point_down(room):
    wrong = {}
    for path in (PACKAGE / room).rglob("*.py"):
        own = place(path)[1]
        used = {name[1] for name in ours_of(path) if name[0] == room and len(name) > 1}
        if more := used - WITHIN[room].get(own, set()) - {own, "limits"}:
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


STAGES = "from sie_triton.pipeline.stages import preprocess, inference, postprocess; import sie_triton.models.families"
CLIENT = "from sie_triton import SIEClient; SIEClient('http://x:1')"

# A program, and what it must not import: others have no PyTorch, a client only NumPy and tritonclient.
WITHOUT = {
    "the controller": ("import sie_triton.controller.run", ("torch", "transformers", "sie_triton.models.families")),
    "the door": ("import sie_triton.doors.run", ("torch", "transformers", "tokenizers", "PIL", "aiohttp")),
    "a command": ("import sie_triton.cli.main", ("torch", "tritonclient", "httpx", "aiohttp")),
    "a cold stage": (STAGES, ("torch", "transformers", "pydantic", "tritonclient")),
    "the client": (CLIENT, ("torch", "transformers", "pydantic", "yaml", "click", "tokenizers")),
}


@pytest.mark.parametrize(("program", "libraries"), WITHOUT.values(), ids=WITHOUT)
def test_a_program_imports_no_library_that_it_does_not_need(program, libraries):
    assert imported(program, *libraries) == []


def test_the_quick_tests_need_no_pytorch():
    tests = Path(__file__).parents[2]
    files = sorted((tests / "pure").rglob("test_*.py"))
    modules = [".".join(path.relative_to(tests.parent).with_suffix("").parts) for path in files]
    code = f"from importlib import import_module; [import_module(each) for each in {modules!r}]"
    assert imported(code, "torch", "transformers", "sentence_transformers") == []


def test_one_file_imports_tritons_python_api():
    users = [path for path in FILES if any("triton_python_backend" in name for name in imports_of(path))]
    assert [str(path.relative_to(PACKAGE)) for path in users] == ["pipeline/stages/triton.py"]


def imported(code: str, *modules: str) -> list[str]:
    """Return the `modules` that a fresh interpreter has loaded after `code`."""
    program = f"import sys; {code}; print(*[m for m in {modules!r} if m in sys.modules])"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
