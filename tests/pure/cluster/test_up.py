"""The workers of `sie-triton cluster up`."""

import pytest

from sie_triton.cluster.up import PORTS, worker_settings
from sie_triton.settings import Settings, read_settings


@pytest.fixture(autouse=True)
def no_measurements_dir(monkeypatch):
    monkeypatch.delenv("SIE_MEASUREMENTS_DIR", raising=False)


def test_workers_share_the_machine_and_what_they_have_measured(tmp_path):
    settings = read_settings(data_dir=tmp_path, memory_limit_bytes=10_000)
    one, two = (worker_settings(settings, number, 2, range(9000, 9000 + len(PORTS))) for number in (1, 2))
    assert one.data_dir != two.data_dir
    assert one.runtime.measurements_dir == two.runtime.measurements_dir == str(tmp_path / "cluster" / "measurements")
    assert one.memory_limit_bytes == two.memory_limit_bytes == 5_000
    elsewhere = settings.model_copy(update={"measurements_dir": tmp_path / "elsewhere"})
    assert worker_settings(elsewhere, 1, 2, range(9000, 9000 + len(PORTS))).measurements_dir == tmp_path / "elsewhere"


def test_a_server_keeps_its_measurements_in_its_directory(tmp_path):
    settings = read_settings(data_dir=tmp_path)
    assert settings.runtime.measurements_dir == str(tmp_path / "measurements")
    assert settings.portable_runtime.measurements_dir == ""


def test_settings_of_streams_say_that_the_config_service_makes_them():
    for name in ("queue_replicas", "queue_max_bytes", "queue_max_messages"):
        assert "config service" in (Settings.model_fields[name].description or ""), name
