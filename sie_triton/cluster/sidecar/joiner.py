"""Calls Triton for many requests at a time: those of a tenant that wait for a model share calls.

Each tenant has calls of its own, so that Triton, which lets small requests pass, sees those of all tenants.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.messages import with_parameters
from sie_triton.cluster.sidecar.joining import NotJoinable, joined, key_of, num_items_of, split
from sie_triton.cluster.sidecar.metrics import JOINED
from sie_triton.cluster.sidecar.triton import LocalTriton, Response, is_away
from sie_triton.cluster.statuses import DEADLINE_EXCEEDED
from sie_triton.doors.shared_calls import Apart, SharedCalls, Weight
from sie_triton.records.calls import CallLost, OpenCall, unless_lost

log = logging.getLogger(__name__)

# In place of a message that is joined with no other: what it contains may take many times its bytes.
EMPTY = service_pb2.ModelInferRequest()


@dataclass(slots=True)
class Sent:
    """The bytes of a ModelInferRequest. `message` is empty until it waits for others, and for ever if it does not."""

    data: bytes
    message: Any = field(default_factory=lambda: EMPTY)


class Joiner(SharedCalls[Sent, Response]):
    """Belongs to one event loop; the lines are pairs of a model and a tenant.

    `open_call` returns a new call for each joined request.
    """

    def __init__(
        self,
        triton: LocalTriton,
        open_call: Callable[[], OpenCall],
        limits: SidecarLimits = SidecarLimits(),
        **of_calls: Any,
    ) -> None:
        max_items, max_bytes = limits.max_joined_items, limits.max_joined_bytes
        super().__init__(max_items=max_items, max_bytes=max_bytes, observe=JOINED.observe, **of_calls)
        self._triton, self._open_call, self._limits = triton, open_call, limits
        self._apart: OrderedDict[Hashable, None] = OrderedDict()

    def weigh(self, request: Sent) -> Weight:
        """Parse a request. Bytes that are no request are called alone, too, and Triton refuses them."""
        size = len(request.data)
        if size > self._limits.max_joined_bytes:
            return Weight(None)
        try:
            message = service_pb2.ModelInferRequest.FromString(request.data)
        except DecodeError:
            return Weight(None)
        key = key_of(message, self._limits)
        if key is None:
            return Weight(None)
        request.message = message
        return Weight(key, num_items_of(message) or 0, size)

    def is_apart(self, key: Hashable) -> bool:
        return key in self._apart

    async def alone(self, request: Sent, seconds: float) -> Response:
        return await self._triton.call("ModelInfer", request.data, seconds)

    async def together(self, requests: Sequence[Sent], seconds: float) -> Sequence[Response]:
        messages = [each.message for each in requests]
        try:
            whole, call = joined(messages).SerializeToString(), self._open_call()
            with call as token:
                async with unless_lost(call):
                    request = with_parameters(whole, token)
                    response = await self._triton.call("ModelInfer", request, seconds)
            if is_away(response):  # each of them may be what ended Triton: none is called again here
                return [response] * len(requests)
            if not response.is_ok:
                raise Apart
            parts = split(service_pb2.ModelInferResponse.FromString(response.body), messages)
        except CallLost as exc:
            raise Apart from exc
        except (NotJoinable, ValueError, LookupError, TypeError, DecodeError) as exc:
            log.warning("requests are not joined: %s", exc)
            self._keep_apart(key_of(messages[0], self._limits))
            raise Apart from exc
        return [Response(response.status, "", part.SerializeToString()) for part in parts]

    def late(self, seconds: float) -> Response:
        return Response(DEADLINE_EXCEEDED, "Deadline Exceeded", b"")

    def after(self, answer: Response, waited_s: float) -> Response:
        return replace(answer, waited_s=waited_s)

    def _keep_apart(self, key: Hashable) -> None:
        self._apart[key] = None
        while len(self._apart) > self._limits.max_apart:
            self._apart.popitem(last=False)
