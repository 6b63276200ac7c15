"""Requests that sidecars join, and the responses that they split."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from tritonclient.grpc import service_pb2

from sie_triton.cluster.gateway.kserve import summed
from sie_triton.cluster.sidecar.joining import NotJoinable, joined, key_of, split
from tests.fuzz.damage import damaged, one
from tests.fuzz.target import Target
from tests.support.joined import TENSORS, request, respond


@contextmanager
def joining(directory: Path) -> Iterator[Target]:
    requests = [request(b"a", b"bc"), request(b"x", timeout=5, normalize=True), request(b"d", inputs={"image": [b"1"]})]
    kinds = (
        ("dense", "token_count"),
        ("multivector", "multivector_lengths"),
        ("extraction", "pairs", "timing_ms"),
        (*TENSORS,),
    )
    responses = [respond(joined(requests[:2]), names) for names in kinds]
    statistics = service_pb2.ModelStatisticsResponse()
    statistics.model_stats.add(name="m", version="1", inference_count=2).batch_stats.add(batch_size=4)
    cases = st.tuples(
        st.lists(messages_of(requests), min_size=1, max_size=3), messages_of(responses), messages_of([statistics])
    )
    yield Target(cases, lambda case: joined_and_split(*case), (DecodeError, NotJoinable))


def messages_of(valid: list[Any]) -> SearchStrategy[bytes]:
    """Return a strategy of serialized messages: those that are valid, and damaged ones."""
    texts = [each.SerializeToString() for each in valid]
    return st.one_of(one(texts), damaged(texts))


def joined_and_split(sent: list[bytes], answered: bytes, statistics: bytes) -> None:
    """Join requests as a sidecar does, and split a response; errors that the joiner takes are taken here, too."""
    summed([statistics, statistics])
    found = [service_pb2.ModelInferRequest.FromString(each) for each in sent]
    keys = [key_of(each) for each in found]
    alike = [each for each, own in zip(found, keys, strict=True) if own is not None and own == keys[0]]
    if not alike:
        return
    try:
        whole = joined(alike)
        whole.SerializeToString()
        parts = split(service_pb2.ModelInferResponse.FromString(answered), alike)
    except (ValueError, LookupError, TypeError):
        return
    assert len(parts) == len(alike)
