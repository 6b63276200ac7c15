"""Results of a directory here and by sentence-transformers: equal, unless we refuse it or the library cannot use it."""

from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder

from sie_triton.contract import Batch, Part
from sie_triton.contract.spec import Runtime
from sie_triton.contract.transforms import normalize
from sie_triton.errors import SIEError
from sie_triton.models.catalog.recognise import explain
from sie_triton.models.families import load_processor, model_of
from sie_triton.models.inputs import kind_of
from sie_triton.models.inputs.request_parts import Framed, features_of
from sie_triton.pipeline.stages.checks import check_features
from tests.support.loading import load_adapter, with_tokenizers

QUERY = "How do vines climb, and why? Nobody knows."
TEXTS = ["a", "Stop. Look, listen!", "The vine climbs Walls " * 9, "One two three. " * 40]


# By our family; of all others SentenceTransformer.
LIBRARIES = {"splade": SparseEncoder, "multivector": MultiVectorEncoder, "cross_encoder": CrossEncoder}

Results = dict[str, list[Any]]


def ours(directory: Path, family: str = "") -> Results:
    """Return results by role, all texts together; SIEError if the directory is refused."""
    config, _ = explain(directory, "my/model", {"weights_path": str(directory)}, family)
    spec = config.resolve(Runtime("cpu"))
    directory = with_tokenizers(spec, directory)
    model, adapter, processor = model_of(spec), load_adapter(spec, directory), load_processor(spec, directory)
    pairs = config.family == "cross_encoder"

    def run(texts: list[str], is_query: bool) -> list[Any]:
        query = QUERY if pairs else None
        part = Part("text", texts, spec.profiles[0], None if pairs else is_query, None, query)
        (features,) = features_of(processor, [[Framed(part, processor.frame(part), kind_of(("text",)))]])
        check_features(features, model.features, spec.max_sequence_length, adapter.limits)
        outputs = frozenset(output.made_of or name for name, output in model.outputs.items())
        rows = adapter.forward(Batch(features, np.full(len(texts), is_query), outputs))
        return _items(rows, spec)

    roles = {"scores": False} if pairs else {"query": True, "document": False}
    found = {role: run(TEXTS, is_query) for role, is_query in roles.items()}
    alone = {role: [run([text], is_query)[0] for text in TEXTS] for role, is_query in roles.items()}
    for role in roles:
        compare(found[role], alone[role])
    return found


def _items(rows: Any, spec: Any) -> list[Any]:
    if "scores" in rows:
        return list(rows["scores"])
    if "dense" in rows:
        return list(normalize(rows["dense"]) if spec.profiles[0].parameters.get("normalize") else rows["dense"])
    if "multivector" in rows:
        return np.split(rows["multivector"], np.cumsum(rows["multivector_lengths"])[:-1])
    ends = np.cumsum(rows["sparse_lengths"])[:-1]
    made = []
    indices, values = (np.split(rows[name], ends) for name in ("sparse_indices", "sparse_values"))
    for places, weights in zip(indices, values, strict=True):
        vector = np.zeros(spec.dims["sparse"], np.float32)
        vector[places] = weights
        made.append(vector)
    return made


def theirs(directory: Path, library: Any = SentenceTransformer) -> Results:
    """Return the library's results by role, each text alone."""
    model = library(str(directory), device="cpu", local_files_only=True)
    if isinstance(model, CrossEncoder):
        return {"scores": [float(model.predict([(QUERY, text)])[0]) for text in TEXTS]}
    return {
        "query": [_dense(model.encode_query([text])[0]) for text in TEXTS],
        "document": [_dense(model.encode_document([text])[0]) for text in TEXTS],
    }


def _dense(found: Any) -> Any:
    found = found.to_dense() if getattr(found, "is_sparse", False) else found
    return found.numpy() if hasattr(found, "numpy") else found


def compare(ours: list[Any], theirs: list[Any]) -> None:
    """Raise AssertionError unless the results are equal, but for rounding."""
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=2e-4, atol=5e-5)


def outcome(directory: Path, family: str = "") -> str:
    """Return what becomes of a directory: "equal", "refused: …" or "refused by the library"; else AssertionError.

    `family` is ours, if the files alone do not determine it.
    """
    try:
        config, _ = explain(directory, "my/model", {"weights_path": str(directory)}, family)
        mine = ours(directory, family)
    except SIEError as exc:
        return f"refused: {exc}"
    try:
        other = theirs(directory, LIBRARIES.get(config.family, SentenceTransformer))
    except Exception as exc:  # the library's errors are of any kind
        return f"refused by the library: {str(exc).splitlines()[0][:90]}"
    assert set(mine) == set(other)
    for role in mine:
        compare(mine[role], other[role])
    return "equal"
