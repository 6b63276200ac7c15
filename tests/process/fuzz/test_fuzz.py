"""A short run of each target of scripts/fuzz: none finds anything."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.fuzz.hunt import Hunt
from tests.fuzz.runner import fuzzed
from tests.fuzz.target import target_named
from tests.fuzz.targets import TARGETS

NUM_CASES, SEED, HANG_S = 50, 1, 60.0

# Targets whose cases take long.
NUMBERS: Mapping[str, int] = {"weights": 15, "adapters": 20, "checkpoints": 20, "door": 30, "pdf": 20, "pickled": 15}

# Targets that fork, each in a process of its own: a fork has no other threads, which may hold locks.
FORKING = ("pdf", "pickled")


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Directory of all targets, which share its saved models."""
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("tokenizers_made_here")
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_is_found(name, home):
    directory, num_cases = home / name, NUMBERS.get(name, NUM_CASES)
    if name in FORKING:
        found = fuzzed(name, TARGETS[name], directory, num_cases, SEED, HANG_S).findings
    else:
        directory.mkdir()
        with target_named(TARGETS[name])(directory) as target:
            found = list(Hunt(target, set()).run(num_cases, SEED))
    assert not found, "\n\n".join(f"{each.text}\n{each.shown}" for each in found)
