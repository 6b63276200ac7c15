"""A step accepts data from the step before it only, by a seal."""

import numpy as np
import pytest

from sie_triton.errors import InputError
from sie_triton.stages.seal import Seal

TENSORS = [np.array([2, 1], np.int32), np.ones((2, 4), np.float32)]
TEXT = b'["encode", {}]'


@pytest.fixture
def sealed(tmp_path):
    return Seal(tmp_path).sealed(TEXT, TENSORS)


def test_a_seal_is_accepted_by_another_process_of_the_same_server(tmp_path, sealed):
    assert Seal(tmp_path).opened(sealed, TENSORS) == TEXT


@pytest.mark.parametrize("byte", [0, 7, 8, -1])
def test_a_context_that_was_changed_is_refused(tmp_path, sealed, byte):
    changed = sealed.copy()
    changed[byte] ^= 1
    with pytest.raises(InputError, match="context: this step accepts only the output of the previous step"):
        Seal(tmp_path).opened(changed, TENSORS)


def test_a_context_that_was_cut_is_refused(tmp_path, sealed):
    for length in range(len(sealed)):
        with pytest.raises(InputError):
            Seal(tmp_path).opened(sealed[:length], TENSORS)


@pytest.mark.parametrize(
    "tensors",
    [
        [np.array([2, 1, 1], np.int32), TENSORS[1]],
        [TENSORS[0], np.ones((10**6, 4), np.float32)],
        [TENSORS[0]],
        [*TENSORS, np.zeros(0)],
        TENSORS[::-1],
    ],
)
def test_tensors_of_other_sizes_are_refused(tmp_path, sealed, tensors):
    with pytest.raises(InputError):
        Seal(tmp_path).opened(sealed, tensors)


def test_a_foreign_seal_is_refused_except_by_an_open_step(tmp_path, sealed):
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError):
        Seal(tmp_path / "other").opened(sealed, TENSORS)
    Seal(tmp_path / "other", is_open=True).opened(sealed, TENSORS)


def test_only_this_user_can_read_the_key(tmp_path, sealed):
    (key,) = tmp_path.iterdir()
    assert key.stat().st_mode & 0o077 == 0
