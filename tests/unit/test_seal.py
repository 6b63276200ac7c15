"""What a step takes from the step before it, and from nobody else; what holds when something in a stage goes wrong."""

import numpy as np
import pytest

from sie_triton.errors import InputError
from sie_triton.stages.seal import Seal

SENT = {
    "lengths": np.array([2, 1], np.int32),
    "dense": np.ones((2, 4), np.float32),
    "stamps": np.array([5, 6, 7, 0], np.int64),
}


@pytest.fixture
def sealed(tmp_path):
    return dict(Seal(tmp_path).put(SENT))


def test_what_was_sealed_is_taken_by_another_process_of_the_same_server(tmp_path, sealed):
    Seal(tmp_path).check(sealed)


@pytest.mark.parametrize(
    "changed",
    [
        {"lengths": np.array([1, 2], np.int32)},
        {"dense": np.ones((3, 4), np.float32)},
        {"stamps": np.array([5, 6, 8, 0], np.int64)},
        {"more": np.zeros(1, np.int32)},
    ],
)
def test_what_was_changed_on_the_way_is_refused(tmp_path, sealed, changed):
    changed = {**sealed, **changed}
    changed["stamps"][-1] = sealed["stamps"][-1]
    with pytest.raises(InputError, match="stamps: this step takes only what the step before it sends"):
        Seal(tmp_path).check(changed)


def test_another_servers_seal_is_refused_and_an_open_step_asks_for_none(tmp_path, sealed):
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError):
        Seal(tmp_path / "other").check(sealed)
    Seal(tmp_path / "other", is_open=True).check(sealed)


def test_the_key_is_nobody_elses_to_read(tmp_path, sealed):
    (key,) = tmp_path.iterdir()
    assert key.stat().st_mode & 0o077 == 0
