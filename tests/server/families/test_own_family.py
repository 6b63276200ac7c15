"""A family from outside sie_triton (tests/support/own_family), served like ours: float features, an engine of numpy,
and its own option, request parameter, output type and recogniser.
"""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton

from benchmarks.texts import texts
from sie_triton.errors import InputError
from sie_triton.system.processes.pids import is_alive
from tests.server.families.conftest import BANDS, HANN, MAX_FRAMES, RECOGNISED, STRONG, Served
from tests.server.test_serve import sie
from tests.support.controller import wait_for
from tests.support.environments import mapped
from tests.support.models import save_frames

TEXTS = [text[:MAX_FRAMES] for text in texts(64)]
TEXT = TEXTS[0]


def expected(directory: Path, text: str, power: float = 1.0, *, hann: bool = False) -> dict[str, np.ndarray]:
    """Reference values of one text alone, in float64, by the family's formula and without its code."""
    matrix = np.load(directory / "frames.npz")["matrix"]
    frames = [[ord(each) / 128, each.isupper(), each.isdigit(), each.isspace()] for each in text]
    spectrum = np.clip(np.array(frames, float) @ matrix, 0, None) ** power
    weights = np.hanning(len(text) + 2)[1:-1] if hann else np.full(len(text), 1.0)
    dense = weights @ spectrum / weights.sum()
    return {"dense": dense / np.linalg.norm(dense), "spectrum": spectrum}


def check(found: dict[str, Any], wanted: dict[str, np.ndarray]) -> None:
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5, rtol=1e-4, err_msg=name)


def test_render(tmp_path):
    directory = save_frames(tmp_path / RECOGNISED, BANDS, MAX_FRAMES)
    process = sie("render", str(directory), f"--output={tmp_path / 'rendered'}")
    _, said = process.communicate()
    assert process.returncode == 0, said
    inference = (tmp_path / "rendered" / f"{RECOGNISED}-inference" / "config.pbtxt").read_text()
    assert "input_ids" not in inference
    assert RECOGNISED in inference


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_directory_without_a_model_file(served, protocol):
    with served.client(protocol) as client:
        for text in ("a", "Hello, World 42", TEXT):
            result = client.encode(RECOGNISED, text)
            check(result, expected(served.letters, text))
            assert result["token_count"] == len(text)


def test_a_plain_client_of_triton(served):
    text = triton.InferInput("text", [2], "BYTES")
    text.set_data_from_numpy(np.array([b"Hello", b"42"], object))
    with triton.InferenceServerClient(f"127.0.0.1:{served.settings.http_port}") as client:
        response = client.infer(RECOGNISED, [text], parameters={"power": 3.0})
    spectrum, lengths = (response.as_numpy(name) for name in ("spectrum", "spectrum_lengths"))
    assert lengths.tolist() == [5, 2]
    check({"spectrum": spectrum[5:]}, {"spectrum": expected(served.letters, "42", 3.0)["spectrum"]})


def test_option_parameter_profile_and_instruction(served):
    with served.client() as client:
        check(client.encode(HANN, TEXT), expected(served.letters, TEXT, hann=True))
        for options, power in (({"profile": "strong"}, STRONG), ({"options": {"power": 3}}, 3.0)):
            result = client.encode(HANN, TEXT, **options)
            check(result, expected(served.letters, TEXT, power, hann=True))
        over = client.encode(HANN, TEXT, profile="strong", options={"power": 1.5})
        check(over, expected(served.letters, TEXT, 1.5, hann=True))
        check(client.encode(RECOGNISED, "b", instruction="A1 "), expected(served.letters, "A1 b"))


def test_only_requested_outputs_are_returned(served):
    with served.client() as client:
        assert set(client.encode(RECOGNISED, TEXT, output_types=["spectrum"])) == {"spectrum", "token_count", "timing"}
        assert set(client.encode(RECOGNISED, TEXT, output_types=["dense"])) == {"dense", "token_count", "timing"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"power": "much"}, "parameter power: 'much' is not allowed; give a number from 1 to 4"),
        ({"output_types": "sparse"}, "parameter output_types: .* list of dense, spectrum"),
    ],
)
def test_a_wrong_parameter(served, options, said):
    with served.client() as client, pytest.raises(InputError, match=said):
        client.encode(RECOGNISED, TEXT, options=options)


def test_a_text_of_no_frames(served):
    with served.client() as client, pytest.raises(InputError, match=r"text\[1\]: "):
        client.encode(RECOGNISED, ["a", ""])


def test_batching_does_not_change_results(served):
    with served.client() as client:
        for text, result in zip(TEXTS, client.encode(RECOGNISED, TEXTS), strict=True):
            alone = client.encode(RECOGNISED, text)
            check(result, {name: alone[name] for name in ("dense", "spectrum")})


def at_once(served: Served, model: str) -> list[dict[str, Any]]:
    """Send each text as a request of its own, each odd one with its own power."""
    with served.client() as client, ThreadPoolExecutor(len(TEXTS)) as pool:
        options = [{"power": 2.0} if i % 2 else {} for i in range(len(TEXTS))]
        return list(pool.map(lambda text, own: client.encode(model, text, options=own), TEXTS, options))


def test_requests_share_forward_passes(served):
    """Clients that get no core send one request after the other, so there are several rounds."""
    with served.client() as client:
        client.encode(RECOGNISED, TEXT)
    num_passes = []
    for _ in range(10):
        before = served.record(RECOGNISED)
        results = at_once(served, RECOGNISED)
        after = served.record(RECOGNISED)
        assert after["num_items"] - before["num_items"] == len(TEXTS)
        num_passes.append(after["num_sub_batches"] - before["num_sub_batches"])
        if num_passes[-1] < len(TEXTS):
            break
    assert min(num_passes) < len(TEXTS)
    for i, (text, result) in enumerate(zip(TEXTS, results, strict=True)):
        check(result, expected(served.letters, text, 2.0 if i % 2 else 1.0))


def test_the_worker_does_not_load_torch(served):
    with served.client() as client:
        client.encode(RECOGNISED, TEXT)
    loaded = mapped(served.record(RECOGNISED)["worker_pid"])
    assert "numpy" in loaded
    assert "libtorch" not in loaded


def test_a_model_of_an_own_family_is_evicted_and_answers_again(served):
    with served.client() as client:
        client.encode(HANN, TEXT)
        worker = served.record(HANN)["worker_pid"]
        served.act(HANN, "evict")
        wait_for(lambda: served.state(HANN) == "cold" and not is_alive(worker))
        results = at_once(served, HANN)
    check(results[0], expected(served.letters, TEXT, hann=True))
    assert len(results) == len(TEXTS)


def test_a_model_of_an_own_family_heals_when_its_worker_is_killed(served):
    with served.client() as client:
        client.encode(RECOGNISED, TEXT)
        worker = served.record(RECOGNISED)["worker_pid"]
        os.kill(worker, signal.SIGKILL)
        for text in TEXTS[:8]:
            check(client.encode(RECOGNISED, text), expected(served.letters, text))
    assert served.record(RECOGNISED)["worker_pid"] not in (0, worker)
