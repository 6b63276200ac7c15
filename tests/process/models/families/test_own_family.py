"""Model files of a family from outside sie_triton (tests/support/own_family), and recognition of its checkpoints."""

from pathlib import Path

import numpy as np
import pytest
from frames_family import Frames
from frames_family.adapter import FramesAdapter

from sie_triton.contract.spec import Runtime
from sie_triton.engines import open_engine
from sie_triton.engines.measurements import Measurements
from sie_triton.errors import CatalogError, LoadError
from sie_triton.models.catalog import load_file, recognise
from sie_triton.models.catalog.config import ModelConfig
from sie_triton.models.catalog.select import recognised_by
from sie_triton.models.families import load_adapter
from sie_triton.pipeline.worker.expected import expected_bytes
from sie_triton.pipeline.worker.messages import Load
from sie_triton.system.host.footprint import INTERPRETER_BYTES
from tests.conftest import model_file
from tests.process.package.test_layers import imported
from tests.support.models import save_frames

FAMILY = "frames_family:Frames"
DIMS = {"dense": 8, "spectrum": 8}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return save_frames(tmp_path / "letters")


def config(directory: Path, dims: dict[str, int] = DIMS, **options: object) -> ModelConfig:
    path = directory.with_suffix(".yaml")
    tasks = {"encode": {name: {"dim": dim} for name, dim in dims.items()}}
    path.write_text(model_file("test/letters", directory, FAMILY, tasks, **options))
    return load_file(path)


def order(directory: Path, **options: object) -> Load:
    spec = config(directory, **options).resolve(Runtime("cpu"))
    return Load(spec.to_json(), directory, "cpu", directory.parent / "cache", directory.parent / "lock", 1, 1)


def test_recognition_and_a_model_file_give_the_same_model(directory):
    found = recognise(directory, "test/letters", {"weights_path": str(directory)}).resolve(Runtime())
    written = config(directory, loadtime={"window": "none"}).resolve(Runtime())
    assert (found.family, found.engine) == (FAMILY, "frames_family.engine:NumpyEngine")
    assert (found.family, found.engine, found.options, found.dims) == (
        written.family,
        written.engine,
        written.options,
        written.dims,
    )


def test_a_recogniser_that_fails_is_named(directory, monkeypatch):
    monkeypatch.setattr(Frames, "recognise", lambda self, directory: 1 / 0)
    with pytest.raises(CatalogError, match="the family frames_family:Frames failed to read it: ZeroDivisionError"):
        recognise(directory, "test/letters", {"weights_path": str(directory)})


def test_a_family_that_fails_spoils_only_its_models(directory, monkeypatch):
    found = config(directory)
    monkeypatch.setattr(Frames, "refusals", lambda self, spec: 1 / 0)
    with pytest.raises(CatalogError, match=f"^{found.source}: "):
        found.resolve(Runtime())


def test_files_of_an_own_family_count_as_weights(directory):
    """They are fetched, count as memory, and measurements are valid only for them."""
    assert "*.npz" in recognised_by()
    file = directory / "frames.npz"
    assert expected_bytes(order(directory)) == INTERPRETER_BYTES + 2 * file.stat().st_size
    order(directory).measurements().put(known=1)
    assert order(directory).measurements().get("known") == 1
    assert order(directory, loadtime={"window": "hann"}).measurements().get("known") is None
    np.savez(file, matrix=np.zeros((4, 9)))
    assert order(directory).measurements().get("known") is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda dense: {"dense": dense.astype(np.float64)}, "returns float64 of 2 dimensions, but declares float32 of"),
        (lambda dense: {"dense": dense[0]}, "returns float32 of 1 dimensions"),
        (lambda dense: {}, "output dense: the family returns nothing"),
    ],
)
def test_an_adapter_output_that_contradicts_its_declaration_is_refused(directory, monkeypatch, change, said):
    forward = FramesAdapter.forward
    monkeypatch.setattr(FramesAdapter, "forward", lambda self, batch: change(forward(self, batch)["dense"]))
    spec = config(directory, dims={"dense": 8}).resolve(Runtime("cpu"))
    with pytest.raises(LoadError, match=said):
        load_adapter(spec, directory, open_engine(spec, "cpu", Measurements()))


def test_an_own_family_without_torch_imports_no_torch():
    code = (
        "from sie_triton.engines import open_engine; import frames_family.adapter, sie_triton.pipeline.worker.__main__"
    )
    assert imported(code, "torch", "transformers") == []
