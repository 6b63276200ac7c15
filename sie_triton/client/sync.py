"""Blocking client."""

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast, overload

from tenacity import Retrying

from sie_triton.client import calls
from sie_triton.client.address import Address
from sie_triton.client.arguments import checked_concurrency, checked_model
from sie_triton.client.connections import CLOSED, GrpcConnection, HttpConnection, connection_to
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
from sie_triton.errors import Cancelled, InputError, SIEError
from sie_triton.names import split_profile, triton_name

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SIEClient:
    """Client of a server: `SIEClient("http://host:8000")`, `SIEClient("grpc://host:8001")` or `SIEClient("host:8001")`.

    Thread-safe. Close the client, or use it as a context manager. Many items are sent as several requests, at most
    `max_concurrency` at a time. `timeout`, in seconds, covers a whole call with its retries: a request is retried if
    the server is busy or restarts. None means 600 s for each request, and 30 s of retries. With `retry=False` nothing
    is retried, and a busy server raises BusyError at once.

    If a model is not served, the client asks the controller to serve it, if it is a known model. `controller_url` is
    the controller's address; None means the default port on the host of `url`, none with TLS, and "" does not ask.

    `token` is sent to both as bearer token. With `https://` or `grpcs://`, for a proxy in front of Triton or of a
    gateway, `ca_file` names the certificates to trust, in PEM.
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
        self._address = Address.parse(url, token, ca_file)
        self._controller = ControllerAddress.beside(self._address, controller_url)
        self._timeout = checked_timeout(timeout)
        self._retry = retry
        self._max_concurrency = checked_concurrency(max_concurrency)
        self._ensembles: dict[tuple[str, str], str] = {}
        self._profiles: dict[str, Profiles] = {}
        self._lock = threading.Lock()
        self._opened: GrpcConnection | HttpConnection | None = None
        self._closing: weakref.finalize[..., SIEClient] | None = None
        self._is_closed = False

    def __enter__(self) -> "SIEClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and end calls in progress; these and later calls raise Cancelled."""
        self._is_closed = True
        if "_pool" in self.__dict__:
            self._pool.shutdown(cancel_futures=True)
        with self._lock:
            if self._closing is not None:
                self._closing()

    @overload
    def encode(self, model: str, items: ItemLike, **options: "Unpack[EncodeOptions]") -> EncodeResult: ...  # type: ignore[overload-overlap]  # a str is a Sequence too

    @overload
    def encode(
        self, model: str, items: Sequence[ItemLike], **options: "Unpack[EncodeOptions]"
    ) -> list[EncodeResult]: ...

    def encode(self, model: str, items: Any, **options: Any) -> Any:
        """Embed one item and return its result, or a list of items and return a list in the same order.

        Raises InputError, BusyError (Unreachable if no server answers), LoadError or ModelError.
        """
        deadline = Deadline.after(options.pop("timeout", self._timeout))
        model, options = self._resolved(model, options, deadline)
        call = calls.EncodeCall(self._connection.triton, model, items, options)
        with self._explaining(call, model, deadline):
            return self._once_served(model, deadline, lambda: call.results(self._responses(call, deadline)))

    def score(
        self, model: str, query: ItemLike, items: Sequence[ItemLike], **options: "Unpack[ScoreOptions]"
    ) -> ScoreResult:
        """Rank `items` by their relevance to `query`. Raises the same errors as `encode`."""
        deadline, asked = Deadline.after(options.pop("timeout", self._timeout)), model
        model, given = self._resolved(model, options, deadline)
        call = calls.ScoreCall(self._connection.triton, model, query, items, given)
        return cast(ScoreResult, self._results(call, model, deadline) | {"model": asked})

    @overload
    def extract(  # type: ignore[overload-overlap]  # a str is a Sequence too
        self,
        model: str,
        items: ItemLike,
        labels: Sequence[str] = (),
        entities: Sequence[Mapping[str, Any]] | None = None,
        **options: "Unpack[ExtractOptions]",
    ) -> ExtractResult: ...

    @overload
    def extract(
        self,
        model: str,
        items: Sequence[ItemLike],
        labels: Sequence[str] = (),
        entities: Sequence[Sequence[Mapping[str, Any]]] | None = None,
        **options: "Unpack[ExtractOptions]",
    ) -> list[ExtractResult]: ...

    def extract(self, model: str, items: Any, labels: Sequence[str] = (), entities: Any = None, **options: Any) -> Any:
        """Extract entities, relations, classes or objects from one item, or from each of a list of items.

        `labels` name what to find, for models without labels of their own. `entities` are known entities, each with
        `start` and `end`, for models that find relations between them: a list for one item, or a list of lists for a
        list of items. Raises the same errors as `encode`.
        """
        deadline = Deadline.after(options.pop("timeout", self._timeout))
        model, options = self._resolved(model, options, deadline)
        call = calls.ExtractCall(self._connection.triton, model, items, labels, entities, options)
        return self._results(call, model, deadline)

    def list_models(self) -> list[str]:
        """Return the names of the models that are ready, as `org/name`."""
        return calls.model_names(self._ask("get_inference_statistics", Deadline.after(self._timeout)))

    @contextmanager
    def _explaining(self, call: calls.ClientCall, model: str, deadline: Deadline) -> Iterator[None]:
        """Add the served models to a NotServed, and the inputs that the model takes to an InputError."""
        try:
            yield
        except NotServed as exc:
            if exc.model:
                raise
            raise not_served(model, self.list_models(), advice_of(self._controller)) from exc
        except Misfit:
            raise
        except InputError:
            self._check(call, model, deadline)
            raise

    def _resolved(self, model: str, options: Mapping[str, Any], deadline: Deadline) -> tuple[str, dict[str, Any]]:
        """Return the model and the options of a call to `org/name:profile`; any other name is returned as it is."""
        name, profile = split_profile(checked_model(model))
        if not profile:
            return name, dict(options)
        if profile not in self._profiles.get(name, ()):  # the model may have changed
            try:
                self._profiles[name] = self._once_served(name, deadline, lambda: self._read_profiles(name, deadline))
            except NotServed as exc:
                raise exc if exc.model else not_served(name, self.list_models(), advice_of(self._controller)) from exc
        return self._profiles[name].applied(name, profile, options)

    def _read_profiles(self, model: str, deadline: Deadline) -> Profiles:
        ensemble = self._ask("get_model_config", deadline, lambda: {"model_name": triton_name(model)})
        step = {"model_name": first_step(model, ensemble)}
        return Profiles.of(self._ask("get_model_config", deadline, lambda: step))

    def _check(self, call: calls.ClientCall, model: str, deadline: Deadline) -> None:
        """Raise Misfit if the ensemble does not take the inputs of `call`; pass if its metadata is not available."""
        try:
            metadata = self._connection.ask("get_model_metadata", deadline, model_name=call.ensemble)
        except SIEError:
            return
        call.check(model, metadata)

    def _results(self, call: calls.ClientCall, model: str, deadline: Deadline) -> Any:
        """Return the results of a call whose verb may have an ensemble of its own, found on first use and cached."""
        with self._explaining(call, model, deadline):
            if not call.pieces:
                return call.results([])
            return self._once_served(model, deadline, lambda: self._results_of_verb(call, model, deadline))

    def _results_of_verb(self, call: calls.ClientCall, model: str, deadline: Deadline) -> Any:
        if known := self._ensembles.get((model, call.verb.name)):
            call.ensemble = known
            try:
                return call.results(self._responses(call, deadline))
            except InputError:  # the model's ensembles may have changed
                self._ensembles.pop((model, call.verb.name), None)
                if self._ensemble(model, call.verb, deadline) == known:
                    raise
        call.ensemble = self._ensemble(model, call.verb, deadline)
        return call.results(self._responses(call, deadline))

    def _once_served(self, model: str, deadline: Deadline, call: Callable[[], Any]) -> Any:
        """Return the result of `call`; if the model is not served, repeat it once the controller serves the model."""
        try:
            return call()
        except NotServed:
            if not self._becomes_served(model, deadline):
                raise
            return call()

    def _becomes_served(self, model: str, deadline: Deadline) -> bool:
        if self._controller is None:
            return False
        if not self._retry:
            return serve_known(self._controller, model, deadline.left_s)
        for attempt in Retrying(**deadline.retrying(lambda: True)):
            with attempt:
                return serve_known(self._controller, model, deadline.left_s)
        raise AssertionError("tenacity raises when it stops")

    def _ensemble(self, model: str, verb: Verb, deadline: Deadline) -> str:
        """Return the name of the ensemble for `verb`: its own, unless the verb is the first of the model."""
        if (model, verb.name) not in self._ensembles:
            name = triton_name(model)
            metadata = self._ask("get_model_metadata", deadline, lambda: {"model_name": name})
            own = {"model_name": calls.own_ensemble(model, verb)}
            has_own = self._ask("is_model_ready", deadline, lambda: own)
            self._ensembles[model, verb.name] = calls.ensemble_of(model, verb, metadata, has_own=has_own)
        return self._ensembles[model, verb.name]

    def _responses(self, call: calls.ClientCall, deadline: Deadline) -> list[Any]:
        if len(call.pieces) == 1:
            return [self._infer(call, call.pieces[0], deadline)]
        futures = [self._pool.submit(self._infer, call, piece, deadline) for piece in call.pieces]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _infer(self, call: calls.ClientCall, piece: slice, deadline: Deadline) -> Any:
        with call.placing(piece):
            return self._ask("infer", deadline, lambda: call.arguments(piece) | deadline.parameters())

    def _ask(self, method: str, deadline: Deadline, arguments: Callable[[], dict[str, Any]] = dict) -> Any:
        if not self._retry:
            return self._connection.ask(method, deadline, **arguments())
        for attempt in Retrying(**deadline.retrying(lambda: self._connection.is_met)):
            with attempt:
                return self._connection.ask(method, deadline, **arguments())
        raise AssertionError("tenacity raises when it stops")

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._max_concurrency, "sie-client")

    @property
    def _connection(self) -> GrpcConnection | HttpConnection:
        with self._lock:
            if self._is_closed:
                raise Cancelled(CLOSED)
            if self._opened is None or self._process != os.getpid():
                self._opened = self._open()
            return self._opened

    def _open(self) -> GrpcConnection | HttpConnection:
        if self._closing is not None:  # after a fork: threads and connections exist only in the parent process
            self._closing.detach()
            self.__dict__.pop("_pool", None)
        opened = connection_to(self._address)
        self._process = os.getpid()
        self._closing = weakref.finalize(self, opened.close)
        return opened
