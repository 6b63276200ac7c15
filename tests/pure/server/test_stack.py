"""The resource limit that sets the stack size of tritonserver's threads."""

import resource
import subprocess
import sys

import pytest

from sie_triton.server import launch

MB = 1024**2
UNLIMITED = resource.RLIM_INFINITY
PROGRAM = "import resource; print(*resource.getrlimit(resource.RLIMIT_STACK))"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((8 * MB, UNLIMITED), launch.STACK_BYTES),
        ((UNLIMITED, UNLIMITED), launch.STACK_BYTES),
        ((8 * MB, 64 * MB), 64 * MB),
        ((64 * MB, 64 * MB), 64 * MB),
        ((2 * launch.STACK_BYTES, UNLIMITED), 2 * launch.STACK_BYTES),
    ],
)
def test_the_stack_limit_is_raised_up_to_the_hard_limit(before, after):
    assert limits(before) == [after, before[1]]


def test_the_stack_limit_stays_where_unused_memory_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "OVERCOMMIT", tmp_path / "overcommit_memory")
    launch.OVERCOMMIT.write_text("2\n")
    assert limits((8 * MB, UNLIMITED)) == [8 * MB, UNLIMITED]


def limits(before: tuple[int, int]) -> list[int]:
    """Return the limits of a child whose limits were `before`."""

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, before)
        launch.raise_stack_limit()

    child = subprocess.run([sys.executable, "-c", PROGRAM], preexec_fn=prepare, capture_output=True, check=True)
    return [int(value) for value in child.stdout.split()]
