"""Sounds and texts through a server: mixed in requests, however a caller has them, beside what cannot be read."""

import numpy as np
import pytest

from sie_triton import Item
from tests.conftest import CLAP
from tests.support.items import Served
from tests.support.sounds import sound, sounds

FILES = sounds()
ITEMS = [
    "the sound of a cat",
    {"audio": FILES[0], "id": "first"},
    {"text": "", "audio": FILES[1]},
    {"audio": FILES[2]},
    "",
    {"audio": FILES[3]},  # of three windows
]


@pytest.fixture(scope="module")
def expected(server):
    """Vectors of each item alone, computed without a server; float32 [n, 32]."""
    directory = server.settings.models_dir.parent / "clap"
    served = Served("clap", directory, inputs=("text", "audio"), dims={"dense": 32})
    return np.concatenate([served.encode([item])["dense"] for item in ITEMS])


def test_items_of_both_kinds_in_one_request(client, expected):
    found = client.encode(CLAP, ITEMS)
    assert np.allclose([each["dense"] for each in found], expected, atol=1e-5)
    assert found[1]["id"] == "first"
    assert [each["token_count"] for each in found] == [7, 8, 8, 8, 2, 24]


def test_the_client_takes_a_sound_in_any_form(client, expected, tmp_path):
    (tmp_path / "a.wav").write_bytes(FILES[0])
    samples = sound(0.3)
    ways = [
        {"audio": str(tmp_path / "a.wav")},
        {"audio": memoryview(FILES[0])},
        {"audio": {"data": FILES[0], "format": "wav", "sample_rate": 48_000}},
        {"audio": {"data": samples, "sample_rate": 48_000}},
        {"audio": {"data": (samples[:, 0] * 32768).astype(np.int16), "sample_rate": 48_000}},
        Item(audio=tmp_path / "a.wav"),
    ]
    for found in client.encode(CLAP, ways):
        assert np.allclose(found["dense"], expected[1], atol=1e-3)
