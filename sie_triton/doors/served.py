"""Served models and their states, from Triton's model configurations and from the backend."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

from sie_triton.client.failures import NotServed, not_served
from sie_triton.contract.names import split_profile, triton_name
from sie_triton.contract.spec import ModelSpec
from sie_triton.doors.backend import Backend, States
from sie_triton.doors.failures import LOAD_CLASSES
from sie_triton.doors.limits import DoorLimits
from sie_triton.errors import InputError, LoadError, SIEError
from sie_triton.records.known_file import FORWARDED, KnownFile
from sie_triton.settings import Settings

SPEC = "sie_spec"

# SIE's states by the controller's. A model whose process died is being restarted, so it counts as loading.
STATES = {"cold": "available", "loading": "loading", "resident": "loaded", "failed": "failed", "dead": "loading"}

# Names of scores and extractions among a model's outputs.
OUTPUTS_OF_TASKS = {"score": "score", "extract": "json"}


class ListedSpecs:
    """Specifications of the models in a file, parsed again when it has changed. Any thread may call `specs`."""

    def __init__(self, file: KnownFile) -> None:
        self._file = file
        self._parsed: tuple[Mapping[str, str], Mapping[str, ModelSpec]] = ({}, {})

    def specs(self) -> Mapping[str, ModelSpec]:
        """Return the specification of each model, by name."""
        found = self._file.specs() or {}
        if found is not self._parsed[0]:
            self._parsed = found, {name: ModelSpec.from_json(text) for name, text in found.items()}
        return self._parsed[1]


class ServedModels:
    """Cached specifications and states of the served models. Belongs to one event loop."""

    def __init__(self, settings: Settings, backend: Backend, limits: DoorLimits = DoorLimits()) -> None:
        self._backend, self._limits = backend, limits
        self._known = ListedSpecs(KnownFile(settings.data_dir))
        self._forwarded = ListedSpecs(KnownFile(settings.data_dir, FORWARDED))
        self._specs: dict[str, tuple[float, ModelSpec]] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._states = States({}, {}, {}, -limits.state_lifetime_s)
        self._asking = asyncio.Lock()

    async def models(self) -> list[dict[str, Any]]:
        """Return all served models with their states, then all known ones, each sorted by name."""
        specs, states, known = await asyncio.gather(self.specs(), self.states(), self._known_specs())
        served = {spec.model for spec in specs}
        others = sorted(known.keys() - served, key=str.lower)
        every = [*specs, *(known[name] for name in others)]
        models = {spec.model: described(spec, states.models.get(spec.model)) for spec in every}
        return [each for spec in every for each in _with_profiles(spec, models)]

    async def specs(self) -> list[ModelSpec]:
        """Return the specifications of all served models, sorted by name; those that are forwarded last."""
        forwarded = self._forwarded_specs()
        names = [name for name in await self._backend.names() if name not in forwarded]
        return [*await self.specs_of(names), *(forwarded[name] for name in sorted(forwarded))]

    async def specs_of(self, names: Iterable[str]) -> list[ModelSpec]:
        """Return the specifications of those of the named models that are served or known."""
        found = await asyncio.gather(*map(self.spec, names), return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, NotServed):
                raise each
        return [each for each in found if not isinstance(each, BaseException)]

    async def model(self, name: str) -> dict[str, Any]:
        """Return one served or known model with its state; NotServed if it does not exist."""
        spec, states = await asyncio.gather(self.spec(name), self.states())
        return described(spec, states.models.get(spec.model)) | {"name": _with_profile(name, spec)}

    async def spec(self, name: str) -> ModelSpec:
        """Return the specification of a served or known model, or of `org/name:profile`; NotServed if there is none."""
        name, profile = split_profile(name)
        if forwarded := self._forwarded_specs().get(name):
            _with_profile(f"{name}:{profile}" if profile else name, forwarded)
            return forwarded
        spec = await self._spec(name)
        return await self._spec(f"{name}.{profile}") if profile in spec.apart else spec

    async def recent(self, name: str, seconds: float) -> ModelSpec | None:
        """Return the specification, an old one while it is read again; None if there is none within `seconds`."""
        model, profile = split_profile(name)
        cached = self._specs.get(model)
        if cached is not None and profile in cached[1].apart:
            cached = self._specs.get(f"{model}.{profile}")
        if cached is None:
            with suppress(SIEError, TimeoutError):
                async with asyncio.timeout(seconds):
                    return await self.spec(name)
            return None
        if cached[0] < monotonic() and name not in self._reading:
            self._reading[name] = asyncio.create_task(self._read_again(name))
        return cached[1]

    async def _read_again(self, name: str) -> None:
        try:
            with suppress(SIEError):
                await self.spec(name)
        finally:
            del self._reading[name]

    async def _spec(self, name: str) -> ModelSpec:
        cached = self._specs.get(name)
        if cached is None or cached[0] < monotonic():
            try:
                cached = self._specs[name] = (monotonic() + self._limits.config_lifetime_s, await self._read(name))
            except NotServed:
                known = await self._known_specs()
                if name not in known:
                    raise
                return known[name]
        return cached[1]

    def _forwarded_specs(self) -> Mapping[str, ModelSpec]:
        """Return the specification of each model whose requests are forwarded, by name; they are few."""
        return self._forwarded.specs() if self._backend.is_beside_server else {}

    async def _known_specs(self) -> Mapping[str, ModelSpec]:
        """Return the specification of each known model, by name."""
        return await asyncio.to_thread(self._known.specs)

    async def with_reason(self, error: NotServed) -> InputError:
        """Return `error` with the reason if the model's file is invalid, or if it generates text; else `error`."""
        if error.model.replace("__", "/", 1) in self._forwarded_specs():
            return InputError.at("model", f"{error.model} generates text; call it at /v1/chat/completions")
        reason = (await self.states()).unserved.get(error.model.replace("__", "/", 1))
        return NotServed(f"model: {error.model} is not served: {reason}") if reason else error

    async def states(self) -> States:
        async with self._asking:
            if self._states.at + self._limits.state_lifetime_s <= monotonic():
                self._states = await self._backend.states()
            return self._states

    async def _read(self, name: str) -> ModelSpec:
        """Read the specification from the configuration of the model's first step, which its ensemble names."""
        try:
            ensemble = await self._backend.ask("get_model_config", model_name=triton_name(name))
            steps = ensemble.config.ensemble_scheduling.step
            step = await self._backend.ask("get_model_config", model_name=steps[0].model_name if steps else "")
            return ModelSpec.from_json(step.config.parameters[SPEC].string_value)
        except (InputError, ValueError, KeyError) as exc:  # unknown to Triton, or not a model of this package
            self._specs.pop(name, None)
            raise not_served(name, await self._backend.names()) from exc


def state_of(told: Mapping[str, Any]) -> str:
    """Return SIE's name of a state; a model of unknown state is available."""
    return STATES.get(told.get("state", ""), "available")


def described(spec: ModelSpec, state: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a model in the format of SIE's clients; `state` is None if it is unknown."""
    told = state or {}
    profiles = [*(profile.name for profile in spec.profiles), *spec.apart]
    return {
        "name": spec.model,
        "inputs": list(spec.inputs),
        "outputs": [*spec.dims, *(OUTPUTS_OF_TASKS[task] for task in spec.tasks if task in OUTPUTS_OF_TASKS)],
        "tasks": list(spec.tasks),
        "dims": dict(spec.dims),
        "loaded": state_of(told) == "loaded",
        "state": state_of(told),
        "last_error": _failure(told.get("failure")),
        "max_sequence_length": spec.max_sequence_length,
        "revision": spec.revision,
        "aliases": [],
        "profiles": {name: {"is_default": name == "default"} for name in profiles},
    }


def _with_profiles(spec: ModelSpec, models: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a model of `models`, and one entry `org/name:profile` for each of its further profiles."""
    yield dict(models[spec.model])
    sources = {profile.name: spec.model for profile in spec.profiles if profile.name != "default"}
    sources |= {name: own for name in spec.apart if (own := f"{spec.model}.{name}") in models}
    for profile, source in sources.items():
        yield {**models[source], "name": f"{spec.model}:{profile}"}


def _with_profile(asked: str, spec: ModelSpec) -> str:
    """Return the name of a model that was asked for; NotServed if it has no such profile."""
    name, profile = split_profile(asked)
    if profile and name == spec.model and profile not in [each.name for each in spec.profiles]:
        profiles = ", ".join((*(each.name for each in spec.profiles), *spec.apart))
        raise NotServed(f"model: {name} has no profile {profile}; its profiles are {profiles}", asked)
    return f"{name}:{profile}" if profile else spec.model


def _failure(reason: str | None) -> dict[str, Any] | None:
    if not reason:
        return None
    return {"code": LOAD_CLASSES[reason], "message": reason, "permanent": LoadError("", reason).is_permanent}
