"""The memory that a worker on a GPU is expected to take, of which room is made before it is started."""

import pytest
import torch
from safetensors.torch import save_file

from sie_triton.checkpoints.contents import check_safetensors, converted_bytes
from sie_triton.contract.spec import Runtime
from sie_triton.errors import LoadError
from sie_triton.pipeline.worker.expected import RESIDENT_BYTES, expected_bytes
from sie_triton.pipeline.worker.messages import Load
from sie_triton.system.host.footprint import ACTIVATION_BYTES, CUDA_CONTEXT_BYTES
from tests.support.stages import spec

BESIDE = CUDA_CONTEXT_BYTES + ACTIVATION_BYTES
NUMBERS = 1000


@pytest.fixture
def expected(tmp_path):
    """Expect a worker on a GPU for weights of that format, computed in that precision."""

    def of(dtype, precision="", **changes):
        directory = tmp_path / "weights"
        directory.mkdir(exist_ok=True)
        save_file({"w": torch.zeros(NUMBERS, dtype=dtype)}, directory / "model.safetensors")
        made = spec(runtime=Runtime("cuda:0", precision=precision), **changes)
        return expected_bytes(Load(made.to_json(), directory, "cuda:0", tmp_path / "m", tmp_path / "lock", 1, 1))

    return of


@pytest.mark.parametrize(
    ("dtype", "precision", "width"),
    [
        (torch.bfloat16, "", 2),
        (torch.float32, "", 2),
        (torch.float32, "bfloat16", 2),
        (torch.float16, "float32", 4),
        (torch.float8_e4m3fn, "", 2),
        (torch.int8, "", 1),
    ],
)
def test_weights_count_once_in_the_format_that_is_computed_in(expected, dtype, precision, width):
    assert expected(dtype, precision) == BESIDE + width * NUMBERS


def test_weights_that_an_engine_does_not_convert_count_at_file_size(expected, tmp_path):
    of_file = (tmp_path / "weights" / "model.safetensors").stat
    assert expected(torch.float32, engine="onnx") == BESIDE + of_file().st_size


def test_the_measured_size_excludes_passes(expected, tmp_path):
    expected(torch.float32)
    order = Load(spec().to_json(), tmp_path / "weights", "cuda:0", tmp_path / "m", tmp_path / "lock", 1, 1)
    order.measurements().put(**{RESIDENT_BYTES: 10**9})
    assert expected_bytes(order) == 10**9 + ACTIVATION_BYTES


@pytest.mark.parametrize("content", [b"", b"short", (5).to_bytes(8, "little") + b"12345", b"\xff" * 99])
def test_a_file_that_is_no_safetensors_counts_with_its_size(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    assert converted_bytes(tmp_path / "file", 2) == len(content)


def test_a_header_that_lies_cannot_ask_for_any_room(tmp_path):
    for offsets in ("[0, 1e300]", "[9, 0]", '["0", "a"]', "[0]", "[0, NaN]", "[0, Infinity]", "[-Infinity, 9]"):
        header = f'{{"w": {{"dtype": "F32", "data_offsets": {offsets}}}}}'.encode()
        (tmp_path / "file").write_bytes(len(header).to_bytes(8, "little") + header + bytes(9))
        assert converted_bytes(tmp_path / "file", 2) == 8 + len(header) + 9


def test_a_header_without_an_end_is_refused(tmp_path):
    header = b'{"w": {"dtype": "F32", "data_offsets": [0, Infinity]}}'
    (tmp_path / "file").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(LoadError, match="is not a safetensors file"):
        check_safetensors(tmp_path / "file")


def test_48_gb_of_bfloat16_have_room_on_a_card_of_80(tmp_path):
    """85 % of the card may be used: 48.9 GB of weights were refused as too large while they were counted twice."""
    header = b'{"w": {"dtype": "BF16", "data_offsets": [0, 48900000000]}}'
    weights = tmp_path / "weights"
    weights.mkdir()
    with (weights / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 48_900_000_000)
    order = Load(spec().to_json(), weights, "cuda:0", tmp_path / "m", tmp_path / "lock", 1, 1)
    assert 48_900_000_000 < expected_bytes(order) < 0.85 * 80e9
