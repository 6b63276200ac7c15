"""CONTRIBUTING's example family, served as printed there."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from sie_triton import SIEClient
from sie_triton.errors import InputError
from sie_triton.host.private import private_directory
from tests.server.test_examples import blocks_of
from tests.server.test_serve import serving

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
BLOCKS = {block.language: block.text for block in blocks_of(CONTRIBUTING.read_text())}
MODEL = "my/frames"
SCALE = POWER = 2.0  # of the model file


def test_the_documented_example_family_is_served(tmp_path, monkeypatch):
    site = private_directory(tmp_path / "data" / "python")  # where Triton's stubs look first; they have no PYTHONPATH
    (site / "my_package").mkdir()
    (site / "my_package" / "my_module.py").write_text(BLOCKS["python"])
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    (tmp_path / "frames").mkdir()
    matrix = np.random.default_rng(3).normal(size=(2, 8))
    np.save(tmp_path / "frames" / "matrix.npy", matrix)
    model = yaml.safe_load(BLOCKS["yaml"])
    model["weights_path"] = str(tmp_path / model["weights_path"])
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "frames.yaml").write_text(yaml.safe_dump(model))

    def wanted(text: str, power: float) -> np.ndarray:
        states = np.array([[ord(letter) / 128, letter.isupper()] for letter in text]) @ matrix * SCALE
        dense = (abs(states) ** power).mean(0)
        return dense / np.linalg.norm(dense)

    with (
        serving(tmp_path / "data", f"--models-dir={tmp_path / 'models'}") as (_, address),
        SIEClient(address) as client,
    ):
        for text, result in zip(["Hello", "x"], client.encode(MODEL, ["Hello", "x"]), strict=True):
            np.testing.assert_allclose(result["dense"], wanted(text, POWER), atol=1e-5)
        result = client.encode(MODEL, "Hello", options={"power": 3})
        np.testing.assert_allclose(result["dense"], wanted("Hello", 3), atol=1e-5)
        with pytest.raises(InputError, match="parameter power: 9 is not allowed"):
            client.encode(MODEL, "Hello", options={"power": 9})
        with pytest.raises(InputError, match="parameter instruction: this model does not read one"):
            client.encode(MODEL, "Hello", instruction="find")


def test_the_example_adapter_fits_in_sixty_lines():
    assert BLOCKS["python"].count("\n") <= 60
