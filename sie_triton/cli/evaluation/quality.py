"""Quality of a source by the mteb library: its ranking of a dataset's documents. Alone imports mteb."""

from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import mteb
import numpy as np
from mteb.abstasks import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import ModelMeta

from sie_triton.cli.evaluation.dataset import Dataset, with_title
from sie_triton.cli.evaluation.metrics import QUALITY
from sie_triton.cli.evaluation.sources import Row, Source
from sie_triton.contract.arrays import Floats
from sie_triton.contract.transforms.similarity import similarity
from sie_triton.contract.transforms.truncate import normalize
from sie_triton.errors import InputError

# Texts of one call.
BATCH = 256

# Modes of `similarity`, by output type.
MODES = {"dense": "dense", "sparse": "sparse", "multivector": "maxsim"}


def local_task(dataset: Dataset) -> Any:
    """Return mteb's task for a dataset on disk."""

    class LocalTask(AbsTaskRetrieval):  # type: ignore[misc]
        metadata = TaskMetadata(
            name=dataset.name,
            description=dataset.name,
            type="Retrieval",
            category="t2t",
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
            dataset={"path": dataset.name, "revision": "local"},
        )

        def load_data(self, *_: object, **__: object) -> None:
            corpus, queries = map(_rows, (dataset.corpus, dataset.queries))
            relevant = {query: dict(documents) for query, documents in dataset.relevant.items()}
            split = {"corpus": corpus, "queries": queries, "relevant_docs": relevant, "top_ranked": None}
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return LocalTask()


def named_task(name: str) -> Any:
    """Return a loaded retrieval task of mteb, fetched from the hub; InputError if that is impossible."""
    try:
        task = mteb.get_task(name)
    except (KeyError, ValueError) as exc:
        raise InputError(f"-t mteb/{name}: mteb knows no such task ({exc.args[0]})") from exc
    if not isinstance(task, AbsTaskRetrieval) or task.metadata.modalities != ["text"]:
        raise InputError(f"-t mteb/{name}: is a task of {task.metadata.type}; give one of text retrieval")
    try:
        task.load_data()
    except Exception as exc:
        raise InputError(
            f"-t mteb/{name}: cannot be fetched ({type(exc).__name__}: {exc}); without a network give a directory"
        ) from exc
    task.convert_v1_dataset_format_to_v2(num_proc=None)
    return task


def dataset_of(task: Any) -> Dataset:
    """Return the texts of a task's first split, for measurements of speed."""
    subset = next(iter(task.dataset.values()))
    split = subset[task.eval_splits[0]]
    corpus, queries = ({row["id"]: _text(row) for row in split[name]} for name in ("corpus", "queries"))
    return Dataset(task.metadata.name, corpus, queries, split["relevant_docs"])


def evaluate(task: Any, source: Source, by: str) -> dict[str, float]:
    result = mteb.evaluate(
        _Searcher(source, by),
        task,
        cache=None,
        co2_tracker=False,
        overwrite_strategy="always",
        show_progress_bar=False,
    )
    scores = next(iter(result.task_results[0].scores.values()))
    return {name: float(np.mean([subset[name] for subset in scores])) for name in QUALITY}


class _Searcher:
    """A source as mteb's SearchProtocol. Ranks by `by`: an output type, or "score"."""

    def __init__(self, source: Source, by: str) -> None:
        self._source, self._by = source, by
        self._ids: list[str] = []
        self._texts: list[str] = []

    @property
    def mteb_model_meta(self) -> Any:
        return ModelMeta.create_empty()

    def index(self, corpus: Any, **_: Any) -> None:
        self._ids, self._texts = [*corpus["id"]], [_text(row) for row in corpus]

    def search(self, queries: Any, *, top_k: int, top_ranked: Any = None, **_: Any) -> dict[str, dict[str, float]]:
        """Return the scores of the best `top_k` documents for each query, among those of `top_ranked` if given."""
        texts = [_text(row) for row in queries]
        scores = self._by_score(texts) if self._by == "score" else self._by_vectors(texts)
        found = {}
        for query, row in zip(queries["id"], scores, strict=True):
            allowed = None if top_ranked is None else set(top_ranked[query])
            order = np.argsort(-row, kind="stable").tolist()
            chosen = [i for i in order if allowed is None or self._ids[i] in allowed][:top_k]
            found[query] = {self._ids[i]: float(row[i]) for i in chosen}
        return found

    def _by_score(self, queries: Sequence[str]) -> list[Floats]:
        # Rerankers read each query with each document.
        if (pairs := len(queries) * len(self._texts)) > (most := 1_000_000):
            raise InputError(f"--by score: {pairs} pairs of query and document; give a dataset of at most {most}")
        return [self._source.score(query, self._texts) for query in queries]

    def _by_vectors(self, queries: Sequence[str]) -> list[Floats]:
        documents, asked = self._rows(self._texts, is_query=False), self._rows(queries, is_query=True)
        if self._by == "dense":
            matrix, vectors = (normalize(np.stack([row["dense"] for row in rows])) for rows in (documents, asked))
            return [matrix @ vector for vector in vectors]
        return [similarity(MODES[self._by], row, documents) for row in asked]

    def _rows(self, texts: Sequence[str], *, is_query: bool) -> list[Row]:
        starts = range(0, len(texts), BATCH)
        return [row for i in starts for row in self._source.encode(texts[i : i + BATCH], is_query=is_query)]


def _rows(texts: Mapping[str, str]) -> Any:
    return datasets.Dataset.from_list([{"id": name, "text": text} for name, text in texts.items()])


def _text(row: Any) -> str:
    return with_title(row.get("title"), row["text"])
