"""The questions of a call to a server and their order, written once for both clients.

The methods are coroutines. Those of the blocking client never suspend: the calls that they await block instead, so that
`connections.finished` runs them to their end.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from sie_triton.client import calls
from sie_triton.client.address import Address
from sie_triton.client.arguments import checked_concurrency, checked_model
from sie_triton.client.failures import NotServed, not_served
from sie_triton.client.fit import Misfit
from sie_triton.client.known import ControllerAddress
from sie_triton.client.limits import ClientLimits
from sie_triton.client.profiles import Profiles, first_step
from sie_triton.client.retry import Deadline, checked_timeout, repeated
from sie_triton.contract import Verb
from sie_triton.contract.names import split_profile, triton_name
from sie_triton.errors import InputError, SIEError

T = TypeVar("T")


class Conversation(ABC):
    """The calls of a client. Holds the ensembles and profiles of models that it has asked for.

    The arguments are those of SIEClient. `_connection` is one of connections.py, opened by its first use.
    """

    _limits = ClientLimits()

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
        self._address = Address.parse(url, token, ca_file)
        self._controller = ControllerAddress.beside(self._address, controller_url)
        self._timeout = checked_timeout(timeout)
        self._max_concurrency = checked_concurrency(max_concurrency)
        self._retry = retry
        self._ensembles: dict[tuple[str, str], str] = {}
        self._profiles: dict[str, Profiles] = {}
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Make the locks and limits of this client's connections."""

    @property
    @abstractmethod
    def _connection(self) -> Any: ...

    @abstractmethod
    async def _call(self, method: str, deadline: Deadline, **arguments: Any) -> Any:
        """Call a method of tritonclient once."""

    @abstractmethod
    async def _responses(self, call: calls.ClientCall, deadline: Deadline) -> Sequence[Any]:
        """Return the response to each of the requests of a call, by `_infer`."""

    @abstractmethod
    async def _serve(self, controller: ControllerAddress, model: str, seconds: float) -> bool:
        """Call serve_known."""

    @abstractmethod
    async def _sleep(self, seconds: float) -> None: ...

    async def _encode(self, model: str, items: Any, options: dict[str, Any]) -> Any:
        deadline = Deadline.after(options.pop("timeout", self._timeout))
        model, options = await self._resolved(model, options, deadline)
        call = calls.EncodeCall(self._connection.triton, model, items, options)
        return await self._explained(call, model, deadline, lambda: self._results(call, deadline))

    async def _score(self, model: str, query: Any, items: Any, options: dict[str, Any]) -> Any:
        deadline, asked = Deadline.after(options.pop("timeout", self._timeout)), model
        model, options = await self._resolved(model, options, deadline)
        call = calls.ScoreCall(self._connection.triton, model, query, items, options)
        return await self._of_verb(call, model, deadline) | {"model": asked}

    async def _extract(self, model: str, items: Any, labels: Any, entities: Any, options: dict[str, Any]) -> Any:
        deadline = Deadline.after(options.pop("timeout", self._timeout))
        model, options = await self._resolved(model, options, deadline)
        call = calls.ExtractCall(self._connection.triton, model, items, labels, entities, options)
        return await self._of_verb(call, model, deadline)

    async def _served(self) -> list[str]:
        """Return the names of the models that are ready, as `org/name`."""
        return calls.model_names(await self._ask("get_inference_statistics", Deadline.after(self._timeout)))

    async def _results(self, call: calls.ClientCall, deadline: Deadline) -> Any:
        return call.results(await self._responses(call, deadline))

    async def _explained(
        self, call: calls.ClientCall, model: str, deadline: Deadline, results: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Return the results of a served model; add the inputs that it takes to an InputError."""
        try:
            return await self._once_served(model, deadline, results)
        except (NotServed, Misfit):
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
            self._profiles[name] = await self._once_served(name, deadline, lambda: self._read_profiles(name, deadline))
        return self._profiles[name].applied(name, profile, options)

    async def _read_profiles(self, model: str, deadline: Deadline) -> Profiles:
        ensemble = await self._ask("get_model_config", deadline, model_name=triton_name(model))
        return Profiles.of(await self._ask("get_model_config", deadline, model_name=first_step(model, ensemble)))

    async def _check(self, call: calls.ClientCall, model: str, deadline: Deadline) -> None:
        """Raise Misfit if the ensemble does not take the inputs of `call`; pass if its metadata is not available."""
        try:
            metadata = await self._call("get_model_metadata", deadline, model_name=call.ensemble)
        except SIEError:
            return
        call.check(model, metadata)

    async def _of_verb(self, call: calls.ClientCall, model: str, deadline: Deadline) -> Any:
        """Return the results of a call whose verb may have an ensemble of its own, found on first use and cached."""
        if not call.pieces:
            return call.results([])
        return await self._explained(call, model, deadline, lambda: self._of_ensemble(call, model, deadline))

    async def _of_ensemble(self, call: calls.ClientCall, model: str, deadline: Deadline) -> Any:
        if known := self._ensembles.get((model, call.verb.name)):
            call.ensemble = known
            try:
                return await self._results(call, deadline)
            except InputError:  # the model's ensembles may have changed
                self._ensembles.pop((model, call.verb.name), None)
                if await self._ensemble(model, call.verb, deadline) == known:
                    raise
        call.ensemble = await self._ensemble(model, call.verb, deadline)
        return await self._results(call, deadline)

    async def _once_served(self, model: str, deadline: Deadline, results: Callable[[], Awaitable[T]]) -> T:
        """Return the results; if the model is not served, ask once more when the controller serves it.

        NotServed lists the served models.
        """
        controller = self._controller
        while True:
            try:
                return await results()
            except NotServed as exc:
                if controller and await self._becomes_served(controller, model, deadline):
                    controller = None
                    continue
                if exc.model:
                    raise
                advice = self._controller.advice if self._controller else ""
                raise not_served(model, await self._served(), advice) from exc

    async def _becomes_served(self, controller: ControllerAddress, model: str, deadline: Deadline) -> bool:
        return await self._repeated(lambda: self._serve(controller, model, deadline.left_s), deadline, lambda: True)

    async def _ensemble(self, model: str, verb: Verb, deadline: Deadline) -> str:
        """Return the name of the ensemble for `verb`: its own, unless the verb is the first of the model."""
        if (model, verb.name) not in self._ensembles:
            metadata = await self._ask("get_model_metadata", deadline, model_name=triton_name(model))
            has_own = await self._ask("is_model_ready", deadline, model_name=calls.own_ensemble(model, verb))
            self._ensembles[model, verb.name] = calls.ensemble_of(model, verb, metadata, has_own=has_own)
        return self._ensembles[model, verb.name]

    async def _infer(self, call: calls.ClientCall, piece: slice, deadline: Deadline) -> Any:
        with call.placing(piece):
            return await self._ask("infer", deadline, **call.arguments(piece))

    async def _ask(self, method: str, deadline: Deadline, **arguments: Any) -> Any:
        """Call a method of tritonclient, and again while the server is busy."""

        def call() -> Coroutine[Any, Any, Any]:
            timeout = deadline.parameters() if method == "infer" else {}
            return self._call(method, deadline, **arguments, **timeout)

        return await self._repeated(call, deadline, lambda: self._connection.is_met)

    async def _repeated(
        self, call: Callable[[], Coroutine[Any, Any, T]], deadline: Deadline, is_met: Callable[[], bool]
    ) -> T:
        if not self._retry:
            return await call()
        return await repeated(call, deadline, is_met, self._sleep, self._limits)
