"""Directories with random settings give the results of the library; `tests.support.random_directories` draws more."""

import pytest

from tests.support.library_results import outcome
from tests.support.random_directories import draw

# Seeds that draw every kind of model, of which each is served.
SEEDS = (1, 4, 11, 16, 29, 31, 40, 47, 54, 62, 66, 69)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("random")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_directory_is_served_as_by_the_library(seed, root, minilm_directory):
    drawn = draw(seed, root, minilm_directory)
    assert outcome(drawn.directory) == "equal", drawn.changes
