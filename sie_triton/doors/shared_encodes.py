"""Calls of Triton that encode requests of one text each share, if they come together and want the same.

A request costs Triton's three steps about as much CPU time as the forward pass of a short text.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

from sie_triton.client.calls import names_item
from sie_triton.client.items import IDENTITY
from sie_triton.client.types import EncodeResult
from sie_triton.contract.tensors import TEXT
from sie_triton.doors.backend import Items, forwarded, tenant
from sie_triton.doors.limits import DoorLimits
from sie_triton.doors.memory import charged_to, hold
from sie_triton.doors.shared_calls import MIN_S, Apart, SharedCalls
from sie_triton.errors import DeadlinePassed, InputError, ModelError
from sie_triton.system.telemetry.identity import TRACEPARENT
from sie_triton.system.telemetry.spans import recorded


class Encode(NamedTuple):
    """Arguments of a call of `encode`."""

    model: str
    items: Items
    seconds: float
    parameters: Mapping[str, Any]

    def may_share(self, limits: DoorLimits) -> bool:
        """True for one short text with short parameters, unless its trace is recorded: that would be that of all."""
        if len(self.items) != 1 or self.items[0].keys() - {IDENTITY} != {TEXT.name}:
            return False
        is_short = len(self.items[0][TEXT.name]) <= limits.shared_text_length
        is_short = is_short and all(_is_short(value, limits) for value in self.parameters.values())
        return is_short and not recorded(forwarded.get().get(TRACEPARENT, ""))

    @property
    def line(self) -> tuple[str, float, str, str]:
        """Model, timeout, tenant and parameters: requests share calls if these are equal."""
        parameters = sorted((name, value) for name, value in self.parameters.items() if value is not None)
        return self.model, self.seconds, tenant.get(), repr(parameters)


def _is_short(value: Any, limits: DoorLimits) -> bool:
    """Return True for a parameter, or a list of names, whose text a line may hold."""
    if isinstance(value, (list, tuple)):
        return len(value) <= 32 and all(isinstance(name, str) and len(name) <= 32 for name in value)
    return len(value) <= limits.shared_text_length if isinstance(value, str) else not isinstance(value, dict)


class Encoded(NamedTuple):
    """Results of a request, and the bytes of memory that it does not hold yet."""

    results: list[EncodeResult]
    num_bytes: int = 0


class SharedEncodes(SharedCalls[Encode, Encoded]):
    """Belongs to the event loop of a door. `encode` calls Triton and returns the results of its items."""

    def __init__(
        self,
        encode: Callable[..., Awaitable[list[EncodeResult]]],
        max_waiting: int,
        limits: DoorLimits = DoorLimits(),
        gather_s: float = 0.0,
    ) -> None:
        super().__init__(
            gather_s=lambda: gather_s,
            max_calls=limits.num_shared_calls,
            max_requests=limits.num_shared_texts,
            max_waiting=max_waiting,
            max_wait_s=limits.shared_wait_s,
        )
        self._encode, self._limits, self._grace_s = encode, limits, limits.shared_grace_s

    @classmethod
    def of_batches(cls, encode: Callable[..., Awaitable[list[EncodeResult]]], limits: DoorLimits) -> Self:
        """Return those of batches, whose calls wait a moment for texts of any length, and become large."""
        batch, any_length = limits.batch, sys.maxsize
        large = replace(limits, num_shared_texts=batch.window_requests, shared_text_length=any_length)
        return cls(encode, sys.maxsize, large, batch.gather_s)

    async def encode(
        self, model: str, items: Items, seconds: float, parameters: Mapping[str, Any]
    ) -> list[EncodeResult]:
        """Return the results of the items, which may share a call with those of others."""
        request = Encode(model, items, seconds, parameters)
        if not request.may_share(self._limits):
            return await self._encode(model, items, seconds, parameters)
        results, num_bytes = await self.call(request.line, request, seconds + self._grace_s)
        hold(num_bytes)
        return results

    async def alone(self, request: Encode, seconds: float) -> Encoded:
        left_s = max(MIN_S, seconds - self._grace_s)
        return Encoded(await self._encode(request.model, request.items, left_s, request.parameters))

    async def together(self, requests: Sequence[Encode], seconds: float) -> Sequence[Encoded]:
        model, _, _, parameters = requests[0]
        items, sizes = [item for request in requests for item in request.items], list[int]()
        try:
            with charged_to(sizes.append):
                results = await self._encode(model, items, max(MIN_S, seconds - self._grace_s), parameters)
        except ModelError as exc:
            raise Apart from exc
        except InputError as exc:
            if names_item(exc):
                raise Apart from exc
            raise
        return [Encoded([result], sum(sizes) // len(requests)) for result in results]

    def late(self, seconds: float) -> DeadlinePassed:
        return DeadlinePassed(f"timeout: the server did not answer within {seconds - self._grace_s:.3g} s")
