"""Compare the server's LoRA adapters with PEFT: vectors of texts of many lengths, each with one of eight adapters."""

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lanes import interleaved
from benchmarks.library_comparison import MINILM, all_of, dense_file, report, served
from benchmarks.texts import log_normal_texts
from sie_triton.contract import Batch, Part
from sie_triton.contract.spec import ModelSpec
from sie_triton.engines import open_engine
from sie_triton.engines.measurements import Measurements
from sie_triton.models.families import load_adapter, load_processor
from sie_triton.models.inputs import NoFrame, kind_of
from sie_triton.models.inputs.request_parts import Framed, features_of
from sie_triton.models.weights import locate

MODEL = "bench/minilm"
NUM_TEXTS, NUM_LORAS, BATCH = 512, 8, 32
NUM_IN_PASS, PASSES = 48, 3
MAX_TOKENS = 256


def run(*, rounds: int, clients: int, output: Path | None) -> None:
    """Measure, print the table, and write `output` if given."""
    texts = log_normal_texts(NUM_TEXTS)
    rng = np.random.default_rng(0)
    asked = list(zip(texts, map(name_of, rng.integers(0, NUM_LORAS, NUM_TEXTS)), strict=True))
    with tempfile.TemporaryDirectory() as scratch:
        library = PeftLibrary(Path(scratch) / "loras")
        loras = {name_of(i): str(Path(scratch) / "loras" / name_of(i)) for i in range(NUM_LORAS)}
        file = dense_file(MINILM, 384) | {"max_sequence_length": MAX_TOKENS, "loras": loras}
        with served(Path(scratch), MODEL, file) as client, ThreadPoolExecutor(clients, "client") as pool:
            for i in range(NUM_LORAS):
                vector = client.encode(MODEL, texts[i], lora=name_of(i))["dense"]
                check(vector, library.mixed([(texts[i], name_of(i))])[0])
            ways = {
                f"server, 8 adapters, {clients} clients": partial(
                    all_of, pool, lambda each: client.encode(MODEL, each[0], lora=each[1]), asked
                ),
                f"server, no adapter, {clients} clients": partial(
                    all_of, pool, lambda each: client.encode(MODEL, each), texts
                ),
                f"PEFT, 8 adapters, set_adapter, batches of {BATCH}": partial(library.one_at_a_time, asked),
                f"PEFT, 8 adapters, mixed batches of {BATCH}": partial(library.mixed, asked),
                f"PEFT, no adapter, batches of {BATCH}": partial(library.base, texts),
            }
            rates = interleaved(ways, NUM_TEXTS, rounds)
        alone = interleaved(passes(Path(scratch) / "loras", asked), NUM_IN_PASS, PASSES * rounds)
    title = (
        f"MiniLM, fp32, {NUM_TEXTS} texts of log-normal length, LoRA of all linear layers of rank 16, "
        f"medians of {rounds} rounds"
    )
    command = f"scripts/bench --what loras --clients {clients} --rounds {rounds}"
    inside = f"Our forward pass alone, {NUM_IN_PASS} of these texts, one thread"
    told = [report(title, "texts/s", rates, command), report(inside, "texts/s", alone, command)]
    if output is not None:
        output.write_text("\n".join(told))


def passes(directory: Path, asked: Sequence[tuple[str, str]]) -> dict[str, Callable[[], Any]]:
    """Return functions that run the same texts: all adapters in one pass, one pass per adapter, no adapter."""
    spec = ModelSpec(MODEL, MINILM, "sentence_transformer", {"dense": 384}, MAX_TOKENS, 16384)
    weights = locate(MINILM, allow_hub=False)
    engine, processor = open_engine(spec, "cpu", Measurements()), load_processor(spec, weights)
    engine.use_threads(1)
    adapter = load_adapter(spec, weights, engine)
    for i in range(NUM_LORAS):
        adapter.encoder.add_lora(name_of(i), directory / name_of(i))
    chosen = sorted(asked[:NUM_IN_PASS], key=lambda each: each[1])

    def batch(wanted: Sequence[tuple[str, str]]) -> tuple[Batch, list[str]]:
        asked = [Framed(Part("text", [text for text, _ in wanted]), NoFrame(), kind_of(spec.inputs))]
        (features,) = features_of(processor, [asked])
        return Batch(features, np.zeros(len(wanted), np.bool_), frozenset({"dense"})), [name for _, name in wanted]

    def run(batches: Sequence[tuple[Batch, Sequence[str]]]) -> None:
        for each, names in batches:
            with adapter.encoder.adapted(names):
                adapter.forward(each)

    whole = batch(chosen)
    apart = [batch([each for each in chosen if each[1] == name]) for name in sorted({name for _, name in chosen})]
    return {
        "8 adapters in one pass": partial(run, [whole]),
        "one pass per adapter": partial(run, apart),
        "no adapter": partial(run, [(whole[0], ())]),
    }


def name_of(number: int) -> str:
    return f"lora-{number}"


def check(ours: Any, theirs: Any) -> None:
    cosine = float(ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs))
    if cosine < 0.9999:
        raise RuntimeError(f"the server's vector differs from PEFT's: cosine {cosine:.5f}")


class PeftLibrary:
    """transformers' MiniLM with PEFT's adapters, from a fixed seed; the adapters are saved below `directory`.

    Texts are batched by length, as in sentence-transformers.
    """

    def __init__(self, directory: Path) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModel, AutoTokenizer

        weights = locate(MINILM, allow_hub=False)
        self._tokenizer = AutoTokenizer.from_pretrained(weights)
        config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", init_lora_weights=False)
        torch.manual_seed(0)
        self._model: Any = get_peft_model(AutoModel.from_pretrained(weights), config, adapter_name=name_of(0))
        for i in range(1, NUM_LORAS):
            self._model.add_adapter(name_of(i), config)
        self._model.eval().save_pretrained(directory)

    def base(self, texts: Sequence[str]) -> Any:
        with self._model.disable_adapter():
            return self._encoded(texts)

    def one_at_a_time(self, asked: Sequence[tuple[str, str]]) -> None:
        for name in sorted({name for _, name in asked}):
            self._model.set_adapter(name)
            self._encoded([text for text, wanted in asked if wanted == name])

    def mixed(self, asked: Sequence[tuple[str, str]]) -> Any:
        return self._encoded([text for text, _ in asked], [name for _, name in asked])

    def _encoded(self, texts: Sequence[str], names: Sequence[str] = ()) -> Any:
        """Return the vectors of texts, float32 [texts, 384]."""
        import torch

        order = np.argsort([-len(text) for text in texts], kind="stable")
        vectors = np.empty((len(texts), 384), np.float32)
        with torch.inference_mode():
            for start in range(0, len(texts), BATCH):
                chosen = order[start : start + BATCH]
                given = self._tokenizer(
                    [texts[i] for i in chosen],
                    padding=True,
                    truncation=True,
                    max_length=MAX_TOKENS,
                    return_tensors="pt",
                )
                mixed = {"adapter_names": [names[i] for i in chosen]} if names else {}
                states = self._model(**given, **mixed).last_hidden_state
                mask = given["attention_mask"][..., None]
                pooled = (states * mask).sum(1) / mask.sum(1)
                vectors[chosen] = torch.nn.functional.normalize(pooled, dim=-1).numpy()
        return vectors
