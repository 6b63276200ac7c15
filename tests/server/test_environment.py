"""Models with worker environments, beside one without: a library that cannot be installed beside the server
(tests/support/arrays_family), torch in another venv, and an environment that does not exist. Beside them
CONTRIBUTING's example family, served as printed there.
"""

import os
import signal
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from sie_triton import LoadError
from sie_triton.contract.names import triton_name
from sie_triton.errors import InputError
from sie_triton.models.environments.venv import Venv
from sie_triton.system.host.private import private_directory
from sie_triton.system.processes.fork_server import fork_server_directory, fork_server_ids
from sie_triton.system.processes.pids import is_alive, parent_of
from tests.conftest import TINY, fresh_settings, model_file, tiny_model_file
from tests.server.test_contributing import BLOCKS
from tests.server.test_own_family import Served, mapped, within
from tests.server.test_serve import port_flags, sie
from tests.support.environments import ARRAYS, FAMILY, SITE_PACKAGES, SOURCE, TASKS, declare, linked, save_arrays
from tests.support.models import save_frames

MODEL = "test/arrays"
PLAIN = "plain"  # in the server's environment
LOST = "test/lost"
NOWHERE = "nowhere"
TORCH = "torch"
EXAMPLE = "my/frames"
SCALE = POWER = 2.0  # of the example's model file
TEXTS = ["a", "Hello, World 42", *(f"{i} Häuser " * 20 for i in range(64))]  # more than goes through a socket


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, environments: Path, tiny_directory: Path) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("environment")
    linked(environments, TORCH, SITE_PACKAGES)
    directory, plain = save_arrays(root / "arrays"), save_frames(root / PLAIN)
    files = {
        MODEL: model_file(MODEL, directory, FAMILY, TASKS) + f"environment: {ARRAYS}\n",
        LOST: model_file(LOST, directory, FAMILY, TASKS) + f"environment: {NOWHERE}\n",
        TINY: tiny_model_file(TINY, tiny_directory) + f"environment: {TORCH}\n",
    }
    (root / "models").mkdir()
    for name, content in files.items():
        (root / "models" / f"{triton_name(name)}.yaml").write_text(content)
    settings = fresh_settings(root, environments_dir=environments)
    site = private_directory(settings.data_dir / "python")  # where Triton's stubs look first
    save_example(root, site)
    (site / SOURCE.name).symlink_to(SOURCE / SOURCE.name)
    declare(site, FAMILY)
    flags = [f"--models-dir={root / 'models'}", f"--data-dir={settings.data_dir}", f"--environments-dir={environments}"]
    ports = [settings.http_port, settings.grpc_port, settings.metrics_port, settings.controller_port]
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    process = sie("serve", str(plain), *files, EXAMPLE, *flags, "--device=cpu", *port_flags(ports), PYTHONPATH=path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "SIE ready\n", process.communicate()[1]
        yield Served(settings, directory)
    finally:
        process.terminate()
        _, said = process.communicate(timeout=30)
    assert f"warning: {LOST}: requests fail until this is fixed: environment {NOWHERE}: does not exist in" in said
    assert not [each for each in psutil.process_iter(["cmdline"]) if str(environments) in str(each.info["cmdline"])]


def save_example(root: Path, site: Path) -> None:
    """Save the example's package, weights and model file."""
    (site / "my_package").mkdir()
    (site / "my_package" / "my_module.py").write_text(BLOCKS["python"])
    (group,) = tomllib.loads(BLOCKS["toml"])["project"]["entry-points"].values()
    declare(site, *group.values())
    (root / "frames").mkdir()
    np.save(root / "frames" / "matrix.npy", np.random.default_rng(3).normal(size=(2, 8)))
    model = yaml.safe_load(BLOCKS["yaml"])
    model["weights_path"] = str(root / model["weights_path"])
    (root / "models" / "frames.yaml").write_text(yaml.safe_dump(model))


def check(served: Served, model: str = MODEL) -> None:
    matrix = np.load(served.directory / "matrix.npy").astype(float)
    with served.client() as client:
        for text, result in zip(TEXTS, client.encode(model, TEXTS), strict=True):
            states = np.array([[ord(each) / 128, each.isupper()] for each in text]) @ matrix
            dense = states.mean(0)
            np.testing.assert_allclose(result["dense"], dense / np.linalg.norm(dense), atol=1e-5)
            np.testing.assert_allclose(result["multivector"], states, atol=1e-4)
            assert result["numpy_version"][0] == 2


def test_the_worker_uses_the_numpy_of_its_environment(served, environments):
    check(served)
    record = served.record(MODEL)
    assert np.__version__.startswith("1.")
    assert "/numpy/core/" in mapped(record["pid"])
    assert f"{environments / ARRAYS}/lib" in mapped(record["worker_pid"])
    assert str(SITE_PACKAGES) not in mapped(record["worker_pid"])


def test_a_model_in_an_environment_answers_again_after_an_eviction_and_a_death(served):
    check(served)
    evicted = served.record(MODEL)["worker_pid"]
    served.act(MODEL, "evict")
    with within(10):
        while served.state(MODEL) != "cold" or is_alive(evicted):
            time.sleep(0.05)
    check(served)
    killed = served.record(MODEL)["worker_pid"]
    os.kill(killed, signal.SIGKILL)
    check(served)
    assert served.record(MODEL)["worker_pid"] not in (0, evicted, killed)


def test_the_documented_example_family_is_served(served):
    matrix = np.load(served.directory.parent / "frames" / "matrix.npy")

    def wanted(text: str, power: float) -> np.ndarray:
        states = np.array([[ord(letter) / 128, letter.isupper()] for letter in text]) @ matrix * SCALE
        dense = (abs(states) ** power).mean(0)
        return dense / np.linalg.norm(dense)

    with served.client() as client:
        for text, result in zip(["Hello", "x"], client.encode(EXAMPLE, ["Hello", "x"]), strict=True):
            np.testing.assert_allclose(result["dense"], wanted(text, POWER), atol=1e-5)
        result = client.encode(EXAMPLE, "Hello", options={"power": 3})
        np.testing.assert_allclose(result["dense"], wanted("Hello", 3), atol=1e-5)
        with pytest.raises(InputError, match="parameter power: 9 is not allowed"):
            client.encode(EXAMPLE, "Hello", options={"power": 9})
        with pytest.raises(InputError, match="parameter instruction: this model does not read one"):
            client.encode(EXAMPLE, "Hello", instruction="find")


def test_a_request_cannot_name_an_environment(served):
    with served.client() as client, pytest.raises(InputError, match="parameter environment: unknown here"):
        client.encode(MODEL, "a", options={"environment": TORCH})


def test_a_missing_environment_fails_only_its_model_until_it_is_made(served, environments):
    with served.client() as client:
        with pytest.raises(LoadError, match=f"environment {NOWHERE}: .* sie-triton env add {NOWHERE} ") as caught:
            client.encode(LOST, "a")
        assert caught.value.reason == "dependency"
        assert client.encode(PLAIN, "a")["dense"].shape == (8,)
        arrays = Venv.read(environments / ARRAYS)
        linked(environments, NOWHERE, arrays.site_packages, python=str(arrays.interpreter))
        served.act(LOST, "load")
        check(served, LOST)


@pytest.mark.slow  # imports torch in a venv of its own
def test_a_worker_is_forked_by_the_fork_server_of_its_environment(served, environments):
    (fork_server,) = fork_server_ids(fork_server_directory(served.settings.status_dir, TORCH))
    assert "numpy" not in mapped(fork_server.pid)  # nobody has asked it yet
    with served.client() as client:
        before = client.encode(TINY, "hello")["dense"]
        worker = served.record(TINY)["worker_pid"]
        assert parent_of(worker) == fork_server.pid
        assert psutil.Process(fork_server.pid).cmdline()[0] == str(environments / TORCH / "bin" / "python")
        os.kill(worker, signal.SIGKILL)
        np.testing.assert_allclose(client.encode(TINY, "hello")["dense"], before, atol=1e-6)
        assert parent_of(served.record(TINY)["worker_pid"]) == fork_server.pid
