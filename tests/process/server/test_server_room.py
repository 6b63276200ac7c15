"""What a server refuses before it starts anything: a memory limit, a port, an address."""

import re
import socket

import pytest

from sie_triton.errors import ServerError
from sie_triton.server.launch import Server
from sie_triton.server.memory_plan import MemoryPlan
from sie_triton.server.serve import check_machine
from sie_triton.settings import read_settings
from tests.support.stages import spec

MB = 1_000_000


def settings(tmp_path, limit, **given):
    return read_settings(data_dir=tmp_path, device="cpu", memory_limit_bytes=limit, **given)


@pytest.mark.parametrize("limit", [1, 300 * MB])
def test_a_too_small_memory_limit_is_refused_with_a_sufficient_one(tmp_path, limit):
    with pytest.raises(ServerError) as caught:
        check_machine(settings(tmp_path, limit), 4)
    (problem,) = [line for line in str(caught.value).splitlines() if "SIE_MEMORY_LIMIT_BYTES" in line]
    assert f"SIE_MEMORY_LIMIT_BYTES is {limit}" in problem
    (needed,) = re.findall(r"set it to at least (\d+)$", problem)
    assert list(MemoryPlan(settings(tmp_path, int(needed)), 4).problems()) == []
    assert list(MemoryPlan(settings(tmp_path, int(needed) - 2 * MB), 4).problems()) != []


def test_a_too_large_model_is_warned_of_with_a_sufficient_limit(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    with (directory / "model.safetensors").open("wb") as file:
        file.truncate(500 * MB)
    large, small = (
        spec(model="my/large", weights=str(directory)),
        spec(model="my/small", weights=str(tmp_path / "none")),
    )
    (warning,) = MemoryPlan(settings(tmp_path, 700 * MB), 2).warnings([large, small])
    assert warning.startswith("warning: my/large takes at least 545 MB, and SIE_MEMORY_LIMIT_BYTES leaves ")
    (needed,) = re.findall(r"it needs at least (\d+)$", warning)
    assert list(MemoryPlan(settings(tmp_path, int(needed)), 2).warnings([large, small])) == []


def test_the_memory_left_for_models_is_printed_at_the_start(tmp_path):
    line = MemoryPlan(settings(tmp_path, 1000 * MB), 4).line()
    assert line == "1000 MB (SIE_MEMORY_LIMIT_BYTES), about 433 MB for the server itself, 417 MB for models"
    assert re.fullmatch(r"\d+ MB \((machine|container)\), .*", MemoryPlan(settings(tmp_path, 0), 4).line())
    assert list(MemoryPlan(settings(tmp_path, 0), 4).problems()) == []


def test_a_taken_port_is_reported_with_the_remedy(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"port {port} on 127.0.0.1 cannot be used .*--http-port"):
            check_machine(settings(tmp_path, 0, http_port=port), 1)


def test_the_embedded_server_stays_on_loopback(tmp_path):
    remote = Server(settings(tmp_path, 0, host="0.0.0.0", fork_stubs=False), tmp_path)
    with pytest.raises(ServerError, match="--allow-remote"), remote:
        pass
