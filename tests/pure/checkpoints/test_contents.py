"""Headers of weights are read up to a size, and nothing that is no file."""

import json
import os
from pathlib import Path

import pytest

from sie_triton.checkpoints.contents import check_headers, check_safetensors, converted_bytes
from sie_triton.checkpoints.files import inside, read_bytes, read_json
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.errors import LoadError


def save(path: Path, size: int) -> Path:
    """Save a tensor of four bytes behind a header of `size` bytes."""
    header = json.dumps({"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}}).ljust(size).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return path


def test_a_longer_header_is_not_read(tmp_path):
    path = save(tmp_path / "model.safetensors", LIMITS.max_header_bytes)
    check_safetensors(path)
    check_headers(tmp_path)
    assert converted_bytes(path, 4) == 8
    save(path, LIMITS.max_header_bytes + 1)
    for check, where in ((check_safetensors, path), (check_headers, tmp_path)):
        with pytest.raises(LoadError, match="header") as error:
            check(where)
        assert error.value.reason == "unsupported"
    assert converted_bytes(path, 4) == path.stat().st_size


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_not_read(make, tmp_path):
    make(path := tmp_path / "model.safetensors")
    for check, where in ((check_safetensors, path), (check_headers, tmp_path), (read_json, path)):
        with pytest.raises(LoadError, match="is not a regular file"):
            check(where)


def test_a_file_is_read_up_to_a_size(tmp_path):
    (path := tmp_path / "config.json").write_text("[1]")
    assert read_bytes(path, 3) == b"[1]"
    with pytest.raises(LoadError, match="at most 2 bytes"):
        read_bytes(path, 2)
    with pytest.raises(LoadError, match="at most 2 bytes"):
        read_json(path, most=2)


@pytest.mark.parametrize("relative", ["/etc", "a/../../b", "a\0b", "a\nb", "\ud800", "a" * 256, "蔷" * 86])
def test_a_path_that_no_model_has_is_refused(relative, tmp_path):
    with pytest.raises(LoadError, match=r"^modules\.json: must be a path inside the model's directory") as error:
        inside(tmp_path, relative, "modules.json")
    assert error.value.reason == "unsupported"


def test_the_longest_path_can_be_looked_for(tmp_path):
    assert not inside(tmp_path, "蔷" * 85, "modules.json").exists()
