"""A full server with LoRA adapters: many on one model, more than it may hold, and what is wrong with some."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.texts import texts
from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.errors import InputError, LoadError
from sie_triton.models import known_loras as known
from sie_triton.records.lora_states import RESIDENT, read_loras
from tests.conftest import CROSS_ENCODER, GLINER, TINY, Running
from tests.support.loras import LEAST_COSINE, least_cosine, save_lora

LIMIT = 10
NAMES = [f"tenant-{i}" for i in range(12)]
TEXTS = texts(24)
CLIENTS = 16


@dataclass(frozen=True)
class Tenants:
    """Adapters of a model, and what each makes of TEXTS: float32 [24, dim], by name; that of "" is the base's."""

    model: str
    vectors: dict[str, np.ndarray]
    directories: dict[str, Path]


@pytest.fixture(scope="module")
def tenants(server: Running, tiny_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Tenants:
    return tenants_of(server, TINY, tiny_directory, tmp_path_factory.mktemp("loras"), 0.3)


def tenants_of(server: Running, model: str, weights: Path, scratch: Path, spread: float) -> Tenants:
    library = SentenceTransformer(str(weights), device="cpu")
    base = library[0].model
    vectors, directories = {"": library.encode(TEXTS)}, {}
    for seed, name in enumerate(NAMES):
        directories[name] = scratch / name
        library[0].model = save_lora(directories[name], base, seed, spread, r=16, target_modules="all-linear")
        vectors[name] = library.encode(TEXTS)
        add(server, model, name, directories[name])
    return Tenants(model, vectors, directories)


def add(server: Running, model: str, name: str, directory: Path) -> None:
    """Add an adapter as `sie-triton lora add` does."""
    known.add(known.added_path(Path(server.settings.runtime.loras_dir), model), name, str(directory))


def resident(server: Running, model: str = TINY) -> list[str]:
    """Return the resident adapters, least recently used first."""
    found = read_loras(server.settings.status_dir, triton_name(model))
    held = [lora for lora in found.values() if lora["state"] == RESIDENT]
    return [lora["name"] for lora in sorted(held, key=lambda lora: lora["last_used_ns"])]


def test_adapter_vectors_match_peft_and_the_base_is_unchanged(client, tenants):
    for name in ("", *NAMES[:3]):
        found = np.stack([each["dense"] for each in client.encode(TINY, TEXTS, lora=name)])
        assert least_cosine(found, tenants.vectors[name]) >= LEAST_COSINE
        for other in NAMES[:3]:
            assert other == name or least_cosine(found, tenants.vectors[other]) < 0.99


@dataclass
class Traffic:
    """Requests of one text each, from CLIENTS at once; every answer is compared with its adapter's own vector."""

    server: Running
    tenants: Tenants
    num_answered: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    wrong: int = 0

    async def run(self, weights: Mapping[str, float], seconds: float, clients: int = CLIENTS) -> None:
        """Run the traffic. `weights`: relative frequency of each adapter."""
        until = time.perf_counter() + seconds
        async with grpc.aio.insecure_channel(self.server.grpc) as channel:
            infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
            await asyncio.gather(*(self._client(infer, seed, weights, until) for seed in range(clients)))

    async def ask(self, infer: Any, name: str, index: int) -> None:
        try:
            answer = await infer(message(self.tenants.model, TEXTS[index], name))
        except grpc.aio.AioRpcError as exc:
            self.failed.append(f"{name}: {exc.details()}")
            return
        (raw,) = answer.raw_output_contents
        found, expected = np.frombuffer(raw, np.float32), self.tenants.vectors[name][index]
        self.wrong += least_cosine(found[None], expected[None]) < LEAST_COSINE
        self.num_answered[name] += 1

    async def _client(self, infer: Any, seed: int, weights: Mapping[str, float], until: float) -> None:
        rng = np.random.default_rng(seed)
        names, shares = list(weights), np.array(list(weights.values()))
        while time.perf_counter() < until:
            await self.ask(infer, names[rng.choice(len(names), p=shares / shares.sum())], rng.integers(len(TEXTS)))


def message(model: str, text: str, lora: str) -> service_pb2.ModelInferRequest:
    raw = text.encode()
    return service_pb2.ModelInferRequest(
        model_name=triton_name(model),
        inputs=[service_pb2.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])],
        outputs=[service_pb2.ModelInferRequest.InferRequestedOutputTensor(name="dense")],
        parameters={"lora": service_pb2.InferParameter(string_param=lora)},
        raw_input_contents=[len(raw).to_bytes(4, "little") + raw],
    )


def test_requests_of_several_adapters_share_forward_passes(server, tenants):
    traffic, evenly = Traffic(server, tenants), dict.fromkeys([*NAMES[:4], ""], 1.0)
    asyncio.run(traffic.run(evenly, 0.5))
    before = server.status(TINY)
    asyncio.run(traffic.run(evenly, 1.0))
    counted = {name: value - before[name] for name, value in server.status(TINY).items()}
    assert (traffic.wrong, traffic.failed) == (0, [])
    assert min(traffic.num_answered[name] for name in evenly) > 5
    assert counted["num_items"] > 2 * counted["num_sub_batches"]


def test_the_most_recently_used_adapters_stay(server, tenants):
    with SIEClient(server.grpc) as client:
        for name in (*NAMES, *NAMES[:6]):
            client.encode(TINY, TEXTS[0], lora=name)
            assert len(resident(server)) <= LIMIT
    eventually(lambda: resident(server) == [*NAMES[8:], *NAMES[:6]])


def test_adapters_count_as_memory_of_the_model(server, tenants):
    with SIEClient(server.grpc) as client:
        client.encode(TINY, TEXTS[0], lora=NAMES[0])
    found = read_loras(server.settings.status_dir, triton_name(TINY))
    own = found[str(tenants.directories[NAMES[0]])]["bytes"]
    held = sum(lora["bytes"] for lora in found.values())
    size = (tenants.directories[NAMES[0]] / "adapter_model.safetensors").stat().st_size
    assert own == pytest.approx(size, rel=0.2)
    assert held > 9 * own
    assert server.status(TINY)["weights_bytes"] > 2 * held


def test_adapters_over_the_limit_and_a_killed_worker_fail_no_request(server, tenants):
    """Requests follow Zipf: some adapters stay resident, others do not. No request fails or gets another's vector."""
    zipf = {name: 1 / rank for rank, name in enumerate(NAMES, 1)} | {"": 1.0}
    traffic, most, seconds = Traffic(server, tenants), 0, 4

    async def watch() -> None:
        nonlocal most
        while not over.is_set():
            most = max(most, len(resident(server)))
            await asyncio.sleep(0.05)

    async def kill() -> None:
        await asyncio.sleep(seconds / 2)
        os.kill(server.status(TINY)["worker_pid"], signal.SIGKILL)

    async def both() -> None:
        watching, killing = asyncio.create_task(watch()), asyncio.create_task(kill())
        await traffic.run(zipf, seconds)
        over.set()
        await asyncio.gather(watching, killing)

    over = asyncio.Event()
    with SIEClient(server.grpc) as client:  # its worker is there to be killed
        client.encode(TINY, TEXTS[0])
    replaced = server.status(TINY)["num_replaced"]
    asyncio.run(both())
    assert (traffic.wrong, traffic.failed) == (0, [])
    assert set(traffic.num_answered) == set(zipf)
    assert server.status(TINY)["num_replaced"] == replaced + 1
    assert most == LIMIT


def test_a_faulty_adapter_is_reported_and_affects_no_other(server, tenants, tmp_path, tiny_directory):
    wrong = {"gone": tmp_path / "gone", "empty": tmp_path / "empty", "corrupt": tmp_path / "corrupt"}
    wrong["empty"].mkdir()
    save_lora(wrong["corrupt"], SentenceTransformer(str(tiny_directory))[0].model)
    (wrong["corrupt"] / "adapter_model.safetensors").write_bytes(b"{}")
    said = {"gone": "not a directory", "empty": "adapter_config.json", "corrupt": "adapter_model.safetensors"}
    with SIEClient(server.grpc) as client:
        for name, directory in wrong.items():
            add(server, TINY, name, directory)
            for _ in range(2):
                with pytest.raises(LoadError, match=f"the LoRA adapter {name} is not loaded .*{said[name]}") as caught:
                    client.encode(TINY, TEXTS[0], lora=name)
                assert caught.value.is_permanent
        for lora in ("unheard-of", "org/model"):
            with pytest.raises(
                InputError, match=f"parameter lora: {TINY} has no adapter '{lora}'; give one of corrupt"
            ):
                client.encode(TINY, TEXTS[0], lora=lora)
        for name in ("", NAMES[0]):
            found = client.encode(TINY, TEXTS[0], lora=name)["dense"]
            assert least_cosine(found[None], tenants.vectors[name][:1]) >= LEAST_COSINE


def test_score_applies_an_adapter_and_extract_refuses_an_unknown_one(server, tmp_path):
    """The parameter reaches the other verbs; tests/comparison compares the results themselves."""
    from transformers import AutoModelForSequenceClassification

    data = server.settings.data_dir.parent
    classifier = AutoModelForSequenceClassification.from_pretrained(data / "cross-encoder" / "model")
    save_lora(tmp_path / "judge", classifier, task_type="SEQ_CLS", target_modules=["query", "value"])
    add(server, CROSS_ENCODER, "judge", tmp_path / "judge")
    with SIEClient(server.grpc) as client:
        base = client.score(CROSS_ENCODER, "a query", TEXTS[:3])["scores"]
        by_adapter = client.score(CROSS_ENCODER, "a query", TEXTS[:3], lora="judge")["scores"]
        assert {each["item_id"]: each["score"] for each in base} != {
            each["item_id"]: each["score"] for each in by_adapter
        }
        with pytest.raises(InputError, match="has no adapter 'judge'"):
            client.extract(GLINER, TEXTS[0], labels=["animal"], lora="judge")


def eventually(is_so: Any) -> None:
    until = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.05)
