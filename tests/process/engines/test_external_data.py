"""Weights that an ONNX file keeps in other files come from the model's own directory alone."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from sie_triton.engines.onnx.session import open_session
from sie_triton.errors import LoadError

NUMBERS = np.arange(4, dtype=np.float32)


def save(path, location):
    """A graph that adds four numbers, which are in the file at `location`."""
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": "0", "length": "16"}.items():
        weights.external_data.add(key=key, value=value)
    sides = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])] for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", *sides, [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


@pytest.fixture
def model(tmp_path):
    """A model's directory, beside a file and a directory that are not its own."""
    (tmp_path / "model").mkdir()
    (tmp_path / "secret.bin").write_bytes(NUMBERS.tobytes())
    (tmp_path / "model" / "own.bin").write_bytes(NUMBERS.tobytes())
    (tmp_path / "model" / "link.bin").symlink_to("../secret.bin")
    return tmp_path / "model" / "model.onnx"


@pytest.mark.parametrize(
    "location", ["../secret.bin", "{}/secret.bin", "x/../../secret.bin", "link.bin", "/etc/passwd"]
)
def test_no_other_file_is_read(tmp_path, model, location):
    save(model, location.format(tmp_path))
    with pytest.raises(LoadError, match="ONNX Runtime cannot open it"):
        open_session(model, "cpu", 1)


def test_external_data_is_read_through_the_hub_caches_symlinks(tmp_path, model):
    save(model, "own.bin")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in (model, model.with_name("own.bin")):
        (snapshot / path.name).symlink_to(path)
    for each in (model, snapshot / "model.onnx"):
        (sums,) = open_session(each, "cpu", 1).run(None, {"x": NUMBERS})
        assert np.array_equal(sums, 2 * NUMBERS)
