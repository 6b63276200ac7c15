"""Sources of vectors and scores that are compared: servers of Triton, servers of SIE's HTTP API, a library."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sie_triton.client import SIEClient
from sie_triton.client.address import Address
from sie_triton.client.connections import connection_to
from sie_triton.client.profiles import first_step, spec_in
from sie_triton.client.retry import Deadline
from sie_triton.contract.arrays import Floats
from sie_triton.contract.names import split_profile, triton_name
from sie_triton.contract.spec import Runtime
from sie_triton.errors import CatalogError, InputError, LoadError, SIEError
from sie_triton.models.catalog import select
from sie_triton.models.weights import locate

# Tensors of one text by name, as `sie_triton.contract.transforms.similarity` reads them.
Row = Mapping[str, npt.NDArray[Any]]

# Time for a call of a server, which may have to load the model first, in seconds.
CALL_S = 900.0


class Source(ABC):
    """Vectors and scores of one model from one place. Thread-safe unless `is_in_process`."""

    is_in_process = False

    @abstractmethod
    def encode(self, texts: Sequence[str], *, is_query: bool) -> list[Row]:
        """Return one row per text, in one call."""

    @abstractmethod
    def score(self, query: str, texts: Sequence[str]) -> Floats:
        """Return the relevance of each text to the query, float32 [texts]; larger is more relevant."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027, the default
        """Release connections, if there are any."""


class TritonSource(Source):
    def __init__(self, model: str, by: str, server: Address) -> None:
        self._model, self._by = model, by
        self._client = SIEClient(server, timeout=CALL_S)

    def encode(self, texts: Sequence[str], *, is_query: bool) -> list[Row]:
        results = self._client.encode(self._model, list(texts), output_types=[self._by], is_query=is_query)
        return [_row(self._by, result[self._by]) for result in results]  # type: ignore[literal-required]

    def score(self, query: str, texts: Sequence[str]) -> Floats:
        result = self._client.score(self._model, query, [{"id": str(i), "text": text} for i, text in enumerate(texts)])
        return _in_order(len(texts), {entry["item_id"]: entry["score"] for entry in result["scores"]})

    def close(self) -> None:
        self._client.close()


class HttpSource(Source):
    def __init__(self, model: str, by: str, url: str) -> None:
        from sie_triton.cli.evaluation.http_api import HttpApi

        self._by = by
        self._api = HttpApi(url, model, CALL_S)

    def encode(self, texts: Sequence[str], *, is_query: bool) -> list[Row]:
        items = self._api.encode(texts, self._by, is_query=is_query)
        return [_row(self._by, item if self._by == "sparse" else item["values"]) for item in items]

    def score(self, query: str, texts: Sequence[str]) -> Floats:
        return _in_order(len(texts), self._api.score(query, texts))

    def close(self) -> None:
        self._api.close()


class LibrarySource(Source):
    """sentence-transformers in this process, on the device that it chooses."""

    is_in_process = True

    def __init__(self, directory: Path, by: str) -> None:
        import sentence_transformers as library

        kinds = {
            "dense": library.SentenceTransformer,
            "sparse": library.SparseEncoder,
            "multivector": library.MultiVectorEncoder,
            "score": library.CrossEncoder,
        }
        self._by = by
        self._model: Any = kinds[by](str(directory))

    def encode(self, texts: Sequence[str], *, is_query: bool) -> list[Row]:
        encode = self._model.encode_query if is_query else self._model.encode_document
        found = encode(list(texts), show_progress_bar=False)
        return [_row(self._by, _of_torch(each) if self._by != "dense" else each) for each in found]

    def score(self, query: str, texts: Sequence[str]) -> Floats:
        scores: Floats = self._model.predict([(query, text) for text in texts], show_progress_bar=False)
        return scores


def open_source(spec: str, model: str, by: str, server: Address) -> tuple[str, Source]:
    """Return the name and the source of `spec`. `server` is that of `sie`; `st` has its directory.

    InputError if it names no source.
    """
    name, has_place, place = spec.partition("=")
    if spec == "sie":
        return name, TritonSource(model, by, server)
    if name == "st":
        return name, LibrarySource(Path(place), by)
    place = place if has_place else spec
    if place.startswith(("http://", "https://")):
        return name, HttpSource(model, by, place)
    if place.startswith(("grpc://", "grpcs://")):
        return name, TritonSource(model, by, Address.parse(place))
    raise InputError(
        f"-s {spec!r} is not a source; name sie, st, st=DIRECTORY, NAME=http://host:port, NAME=grpc://host:port or "
        "targets"
    )


def located(spec: str, model: str, server: Address, models_dir: Path | None) -> str:
    """Return `spec`; st with its directory, which is by default that from which `server` loads the model.

    InputError if there is no such directory here.
    """
    name, has_place, place = spec.partition("=")
    if name != "st":
        return spec
    try:
        weights = place if has_place else _served_from(model, server) or _known(model, models_dir)
        return f"st={locate(weights, allow_hub=True)}"
    except (CatalogError, LoadError) as exc:
        raise InputError(f"-s {spec}: {exc}; give the model's directory on this machine as st=DIRECTORY") from exc


def _served_from(model: str, server: Address) -> str:
    """Return where a running server loads the model's weights from; empty if no server of ours serves the model."""
    deadline, name = Deadline.after(10.0), split_profile(model)[0]
    connection = connection_to(server)
    try:
        ensemble = connection.ask("get_model_config", deadline, model_name=triton_name(name))
        step = connection.ask("get_model_config", deadline, model_name=first_step(name, ensemble))
        return str(spec_in(step)["weights"])
    except (SIEError, LookupError, ValueError):
        return ""
    finally:
        connection.close()


def _known(model: str, models_dir: Path | None) -> str:
    return select([model], models_dir, allow_hub=True).models[0].resolve(Runtime()).weights


def _row(by: str, value: Any) -> Row:
    if by == "sparse":
        return {"sparse_indices": value["indices"], "sparse_values": value["values"]}
    return {by: value}


def _of_torch(value: Any) -> Any:
    """Return the arrays of a sparse vector or of a text's vectors."""
    if not value.is_sparse:
        return value.float().cpu().numpy()
    entries = value.cpu().coalesce()
    return {"indices": entries.indices()[0].numpy(), "values": entries.values().float().numpy()}


def _in_order(count: int, scores: Mapping[str, float]) -> Floats:
    return np.array([scores[str(number)] for number in range(count)], np.float32)
