"""Workers are forked from a process that has imported everything, in which CUDA must not have been used.

A PyTorch built for CUDA and flash-attn are faked: what transformers asks while it is imported is real.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import ClassVar

import pytest

from sie_triton.pipeline.worker import handle
from sie_triton.server import companions
from sie_triton.settings import read_settings
from sie_triton.system.host import device
from sie_triton.system.host.device import ASK_NVML, EXPANDABLE, worker_variables
from tests.support.environments import ARRAYS, spec_of

# What a fork server does before it forks, on a machine with four GPUs, and its worker; prints whether that called CUDA.
IMPORTS = """
import json, os, torch
import sie_triton.system.host.device
calls = []
torch._C._cuda_getDeviceCount = lambda: calls.append("CUDA") or 1
torch._C._cuda_getCurrentRawStream = None
torch.cuda._raw_device_count_nvml = lambda: 4
from sie_triton.engines.torch.process import import_all
import_all()
from transformers.utils import is_flash_attn_2_available
visible = os.environ.get("CUDA_VISIBLE_DEVICES")
has_flash_attn = is_flash_attn_2_available()
sie_triton.system.host.device.num_gpus = lambda: 4
device = sie_triton.system.host.device.hide_other_gpus("cuda:1")
count = torch.cuda.device_count()
print(json.dumps([calls != [], has_flash_attn, torch.cuda.is_initialized(), visible, device, count]))
"""


@pytest.fixture
def flash_attn(tmp_path):
    """A directory that has a package of that name."""
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text('__version__ = "2.8.3"\n')
    info = tmp_path / "flash_attn-2.8.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.3\n")
    (info / "RECORD").write_text("flash_attn/__init__.py,,\n")
    return tmp_path


def test_imports_leave_cuda_untouched_where_flash_attn_is_installed(flash_attn):
    """So a worker can still choose the GPU that it sees."""
    path = os.pathsep.join([str(flash_attn), *sys.path])
    visible = {"CUDA_VISIBLE_DEVICES": "3,1"}
    environment = {**os.environ, "PYTHONPATH": path, **worker_variables("cuda:0"), **visible}
    done = subprocess.run([sys.executable, "-c", IMPORTS], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [False, True, False, *visible.values(), "cuda:0", 1]


class Noting:
    """Stand-in for a companion that notes its name and environment."""

    made: ClassVar[list[tuple[str, dict[str, str]]]] = []

    def __init__(self, name, command, log, environment, say, **_):
        self.made.append((name, environment))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_every_fork_server_has_the_variables_of_its_workers(arrays, tmp_path, tiny_directory, monkeypatch):
    monkeypatch.setattr(companions, "Companion", Noting)
    monkeypatch.setattr(Noting, "made", [])
    environments = arrays.directory.parent
    settings = read_settings(data_dir=tmp_path / "data", environments_dir=environments, device="cuda:0")
    spec = replace(spec_of(tiny_directory, ARRAYS, environments), engine="torch")
    with companions.fork_servers(settings, [spec]):
        pass
    assert [name for name, _ in Noting.made] == ["the fork server", f"the fork server of environment {ARRAYS}"]
    expected = worker_variables("cuda:0").items()
    assert {**ASK_NVML, **EXPANDABLE}.items() == expected
    assert all(expected <= environment.items() for _, environment in Noting.made)


def test_a_separately_started_worker_has_the_same_variables(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(handle, "start", lambda command, *, environment, **_: given.append(environment))
    _, connections = handle.begin(tmp_path, 1, device="cuda:0")
    assert worker_variables("cuda:0").items() <= given[0].items()
    assert os.environ.items() <= given[0].items()
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("setting", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_expandable_segments_are_used_unless_unsupported_or_overridden(tmp_path, monkeypatch, setting):
    monkeypatch.setattr(device, "DEVICE_FILES", tmp_path)
    assert worker_variables("cpu") == ASK_NVML
    assert worker_variables("cuda:1") == {**ASK_NVML, "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    (tmp_path / "dxg").touch()
    assert worker_variables("cuda:1") == ASK_NVML
    (tmp_path / "dxg").unlink()
    monkeypatch.setenv(setting, "max_split_size_mb:64")
    assert worker_variables("cuda:1") == ASK_NVML
