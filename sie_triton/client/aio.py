"""Client for asyncio, with the calls of SIEClient as coroutines."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast, overload

from tenacity import AsyncRetrying

from sie_triton.client import calls
from sie_triton.client.address import Address
from sie_triton.client.arguments import checked_concurrency, checked_model
from sie_triton.client.connections import AsyncConnection
from sie_triton.client.failures import NotServed, not_served
from sie_triton.client.fit import Misfit
from sie_triton.client.known import ControllerAddress, advice_of, serve_known
from sie_triton.client.profiles import Profiles, first_step
from sie_triton.client.retry import Deadline, checked_timeout
from sie_triton.client.types import (
    EncodeOptions,
    EncodeResult,
    ExtractOptions,
    ExtractResult,
    ItemLike,
    ScoreOptions,
    ScoreResult,
)
from sie_triton.contract import Verb
from sie_triton.errors import InputError, SIEError
from sie_triton.names import split_profile, triton_name

if TYPE_CHECKING:
    from typing_extensions import Unpack


# Calls of a client that may wait at a time for known models to be served.
MAX_WAITING = 16


class AsyncSIEClient:
    """Client for asyncio: `async with AsyncSIEClient("http://host:8000") as client: …`. Belongs to one event loop.

    The arguments are those of SIEClient.
    """

    def __init__(
        self,
        url: str | Address,
        *,
        timeout: float | None = None,
        max_concurrency: int = 4,
        retry: bool = True,
        controller_url: str | None = None,
        token: str = "",
        ca_file: str = "",
    ) -> None:
        address = Address.parse(url, token, ca_file)
        self._connection = self._connect(address)
        self._controller = ControllerAddress.beside(address, controller_url)
        self._timeout = checked_timeout(timeout)
        self._retry = retry
        self._places = asyncio.Semaphore(checked_concurrency(max_concurrency))
        self._ensembles: dict[tuple[str, str], str] = {}
        self._profiles: dict[str, Profiles] = {}

    def _connect(self, address: Address) -> AsyncConnection:
        return AsyncConnection(address)

    async def __aenter__(self) -> "AsyncSIEClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; later calls raise Cancelled."""
        if "_waiting" in self.__dict__:
            self._waiting.shutdown(wait=False, cancel_futures=True)
        await self._connection.close()

    @overload
    async def encode(self, model: str, items: ItemLike, **options: "Unpack[EncodeOptions]") -> EncodeResult: ...  # type: ignore[overload-overlap]  # a str is a Sequence too

    @overload
    async def encode(
        self, model: str, items: Sequence[ItemLike], **options: "Unpack[EncodeOptions]"
    ) -> list[EncodeResult]: ...

    async def encode(self, model: str, items: Any, **options: Any) -> Any:
        """Embed one item or a list of items, as SIEClient.encode does."""
        deadline = Deadline.after(options.pop("timeout", self._timeout))
        model, options = await self._resolved(model, options, deadline)
        call = calls.EncodeCall(self._connection.triton, model, items, options)

        async def results() -> Any:
            return call.results(await self._responses(call, deadline))

        return await self._explained(call, model, deadline, results)

    async def score(
        self, model: str, query: ItemLike, items: Sequence[ItemLike], **options: "Unpack[ScoreOptions]"
    ) -> ScoreResult:
        """Rank items by relevance to a query, as SIEClient.score does."""
        deadline, asked = Deadline.after(options.pop("timeout", self._timeout)), model
        model, given = await self._resolved(model, options, deadline)
        call = calls.ScoreCall(self._connection.triton, model, query, items, given)
        return cast(ScoreResult, await self._results(call, model, deadline) | {"model": asked})

    @overload
    async def extract(  # type: ignore[overload-overlap]  # a str is a Sequence too
        self,
        model: str,
        items: ItemLike,
        labels: Sequence[str] = (),
        entities: Sequence[Mapping[str, Any]] | None = None,
        **options: "Unpack[ExtractOptions]",
    ) -> ExtractResult: ...

    @overload
    async def extract(
        self,
        model: str,
        items: Sequence[ItemLike],
        labels: Sequence[str] = (),
        entities: Sequence[Sequence[Mapping[str, Any]]] | None = None,
        **options: "Unpack[ExtractOptions]",
    ) -> list[ExtractResult]: ...

    async def extract(
        self, model: str, items: Any, labels: Sequence[str] = (), entities: Any = None, **options: Any
    ) -> Any:
        """Extract information from one item or a list of items, as SIEClient.extract does."""
        deadline = Deadline.after(options.pop("timeout", self._timeout))
        model, options = await self._resolved(model, options, deadline)
        call = calls.ExtractCall(self._connection.triton, model, items, labels, entities, options)
        return await self._results(call, model, deadline)

    async def list_models(self) -> list[str]:
        """Return the names of the models that are ready, as `org/name`."""
        return calls.model_names(await self._ask("get_inference_statistics", Deadline.after(self._timeout)))

    async def _explained(
        self, call: calls.ClientCall, model: str, deadline: Deadline, results: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Return the results of a served model.

        Add the served models to a NotServed, and the inputs that the model takes to an InputError.
        """
        try:
            return await self._once_served(model, deadline, results)
        except NotServed as exc:
            if exc.model:
                raise
            raise not_served(model, await self.list_models(), advice_of(self._controller)) from exc
        except Misfit:
            raise
        except InputError:
            await self._check(call, model, deadline)
            raise

    async def _resolved(self, model: str, options: Mapping[str, Any], deadline: Deadline) -> tuple[str, dict[str, Any]]:
        """Return the model and the options of a call to `org/name:profile`; any other name is returned as it is."""
        name, profile = split_profile(checked_model(model))
        if not profile:
            return name, dict(options)
        if profile not in self._profiles.get(name, ()):  # the model may have changed
            try:
                self._profiles[name] = await self._once_served(
                    name, deadline, lambda: self._read_profiles(name, deadline)
                )
            except NotServed as exc:
                raise (
                    exc if exc.model else not_served(name, await self.list_models(), advice_of(self._controller))
                ) from exc
        return self._profiles[name].applied(name, profile, options)

    async def _read_profiles(self, model: str, deadline: Deadline) -> Profiles:
        ensemble = await self._ask("get_model_config", deadline, lambda: {"model_name": triton_name(model)})
        step = {"model_name": first_step(model, ensemble)}
        return Profiles.of(await self._ask("get_model_config", deadline, lambda: step))

    async def _check(self, call: calls.ClientCall, model: str, deadline: Deadline) -> None:
        """Raise Misfit if the ensemble does not take the inputs of `call`; pass if its metadata is not available."""
        try:
            metadata = await self._connection.ask("get_model_metadata", deadline, model_name=call.ensemble)
        except SIEError:
            return
        call.check(model, metadata)

    async def _results(self, call: calls.ClientCall, model: str, deadline: Deadline) -> Any:
        """Return the results of a call whose verb may have an ensemble of its own, found on first use and cached."""
        if not call.pieces:
            return call.results([])
        return await self._explained(call, model, deadline, lambda: self._results_of_verb(call, model, deadline))

    async def _results_of_verb(self, call: calls.ClientCall, model: str, deadline: Deadline) -> Any:
        if known := self._ensembles.get((model, call.verb.name)):
            call.ensemble = known
            try:
                return call.results(await self._responses(call, deadline))
            except InputError:  # the model's ensembles may have changed
                self._ensembles.pop((model, call.verb.name), None)
                if await self._ensemble(model, call.verb, deadline) == known:
                    raise
        call.ensemble = await self._ensemble(model, call.verb, deadline)
        return call.results(await self._responses(call, deadline))

    async def _once_served(self, model: str, deadline: Deadline, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of `call`; if the model is not served, repeat it once the controller serves the model."""
        try:
            return await call()
        except NotServed:
            if not await self._becomes_served(model, deadline):
                raise
            return await call()

    async def _becomes_served(self, model: str, deadline: Deadline) -> bool:
        """Call serve_known on a thread of this client: it may block for minutes."""
        if self._controller is None:
            return False
        ask = partial(serve_known, self._controller, model)
        loop = asyncio.get_running_loop()
        if not self._retry:
            return await loop.run_in_executor(self._waiting, ask, deadline.left_s)
        async for attempt in AsyncRetrying(**deadline.retrying(lambda: True)):
            with attempt:
                return await loop.run_in_executor(self._waiting, ask, deadline.left_s)
        raise AssertionError("tenacity raises when it stops")

    @cached_property
    def _waiting(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(MAX_WAITING, "sie-client")

    async def _ensemble(self, model: str, verb: Verb, deadline: Deadline) -> str:
        """Return the name of the ensemble for `verb`: its own, unless the verb is the first of the model."""
        if (model, verb.name) not in self._ensembles:
            name = triton_name(model)
            metadata = await self._ask("get_model_metadata", deadline, lambda: {"model_name": name})
            own = {"model_name": calls.own_ensemble(model, verb)}
            has_own = await self._ask("is_model_ready", deadline, lambda: own)
            self._ensembles[model, verb.name] = calls.ensemble_of(model, verb, metadata, has_own=has_own)
        return self._ensembles[model, verb.name]

    async def _responses(self, call: calls.ClientCall, deadline: Deadline) -> Sequence[Any]:
        if len(call.pieces) == 1:
            return [await self._infer(call, call.pieces[0], deadline)]
        tasks = [asyncio.create_task(self._infer_in_turn(call, piece, deadline)) for piece in call.pieces]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _infer_in_turn(self, call: calls.ClientCall, piece: slice, deadline: Deadline) -> Any:
        async with self._places:
            return await self._infer(call, piece, deadline)

    async def _infer(self, call: calls.ClientCall, piece: slice, deadline: Deadline) -> Any:
        with call.placing(piece):
            return await self._ask("infer", deadline, lambda: call.arguments(piece) | deadline.parameters())

    async def _ask(self, method: str, deadline: Deadline, arguments: Callable[[], dict[str, Any]] = dict) -> Any:
        if not self._retry:
            return await self._connection.ask(method, deadline, **arguments())
        async for attempt in AsyncRetrying(**deadline.retrying(lambda: self._connection.is_met)):
            with attempt:
                return await self._connection.ask(method, deadline, **arguments())
        raise AssertionError("tenacity raises when it stops")
