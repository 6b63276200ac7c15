"""A stage that dies while shared memory is full."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.errors import SIEError
from sie_triton.records.status import records_of
from tests.residency.conftest import TEXT, Crowd, serving, wait_for

MODEL = "test/tiny"
LIMIT = 4 << 30  # whatever else runs on the machine
SHM_BYTES = 64 << 20
SMALL_SHM = f'mount --make-rprivate / && mount -t tmpfs -o size={SHM_BYTES} tmpfs /dev/shm && exec "$@"'


def answers(client: SIEClient) -> bool:
    with suppress(SIEError):
        return client.encode(MODEL, TEXT, timeout=3)["dense"].shape == (64,)
    return False


def test_a_stage_that_died_while_shared_memory_was_full_is_healed_later(tmp_path, tiny_directory):
    """The test runs in a mount namespace of its own, where /dev/shm is small."""
    shell = ["unshare", "--mount", "sh", "-c", SMALL_SHM, "sh"]
    if (tried := subprocess.run([*shell, "true"], capture_output=True, text=True)).returncode:
        pytest.skip(f"no mount namespace: {tried.stderr}")
    program = f"from pathlib import Path; from {__name__} import *; heal_after_shortage(Path({str(tmp_path)!r}), "
    run = [*shell, sys.executable, "-c", f"{program}Path({str(tiny_directory)!r}))"]
    done = subprocess.run(run, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=200)
    print(done.stdout)
    assert done.returncode == 0, done.stderr


def check_that_a_large_answer_is_given_up(crowd: Crowd) -> None:
    """Check a deferred request: Triton would neither send its response nor take another in its place."""
    texts = triton.InferInput("text", [8000], "BYTES")
    texts.set_data_from_numpy(np.full(8000, b"hi", object))
    with triton.InferenceServerClient(crowd.grpc) as raw:
        with pytest.raises(InferenceServerException, match="shared memory is full; retry") as caught:
            raw.infer(triton_name(MODEL), [texts], client_timeout=30)
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
    (record,) = records_of(crowd.settings.status_dir, triton_name(MODEL), "inference")
    assert record["num_open"] == 0


def heal_after_shortage(root: Path, directory: Path) -> None:
    filler = Path("/dev/shm/filler")
    with serving(root, {MODEL: directory}, 64, memory_limit_bytes=LIMIT) as crowd, SIEClient(crowd.grpc) as client:
        client.encode(MODEL, TEXT)
        with filler.open("wb") as file, suppress(OSError):
            while True:
                os.write(file.fileno(), bytes(4096))
        check_that_a_large_answer_is_given_up(crowd)
        (record,) = records_of(crowd.settings.status_dir, triton_name(MODEL), "inference")
        os.kill(record["pid"], signal.SIGKILL)
        log = crowd.settings.data_dir / "logs" / "controller.log"
        wait_for(lambda: "test__tiny-inference: Triton " in log.read_text())
        assert crowd.state(MODEL) == "dead"
        before = crowd.companion.pid
        os.kill(before, signal.SIGKILL)  # another controller knows it too
        wait_for(lambda: crowd.companion.pid != before and crowd.answers())
        assert crowd.state(MODEL) == "dead"
        filler.unlink()
        started = time.monotonic()
        wait_for(lambda: answers(client))
        print(f"back {time.monotonic() - started:.1f} s after there was space")
