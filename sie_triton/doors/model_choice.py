"""Choose the model of a request that names none, and explain why a model cannot serve a request."""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from sie_triton.client.failures import NotServed
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import ITEMS, TEXT
from sie_triton.doors.backend import Items
from sie_triton.doors.endpoint import Door
from sie_triton.doors.failures import Failure
from sie_triton.errors import InputError, SIEError
from sie_triton.models.families import model_of
from sie_triton.models.families.shared.classes import CLASS_LOGITS
from sie_triton.settings import words

# Kinds of result that a route may need, in the words of error messages.
DENSE_VECTORS, SPARSE_VECTORS, SCORES, CLASSES = "dense vectors", "sparse vectors", "scores", "classes of its own"
MULTIVECTORS = "a vector for each token"
ABLE: dict[str, Callable[[ModelSpec], bool]] = {
    DENSE_VECTORS: lambda spec: "dense" in spec.dims,
    SPARSE_VECTORS: lambda spec: "sparse" in spec.dims,
    SCORES: lambda spec: "score" in spec.tasks,
    CLASSES: lambda spec: "extract" in spec.tasks and classifies(spec),
    MULTIVECTORS: lambda spec: "multivector" in spec.dims,
}


def classifies(spec: ModelSpec) -> bool:
    """Return True if the model gives a text classes, and needs no labels for that."""
    extraction = model_of(spec).extraction
    return CLASS_LOGITS in extraction.computed and not extraction.labels


def able(specs: Iterable[ModelSpec], what: str) -> list[ModelSpec]:
    """Return the models that return `what`, one of ABLE, for texts."""
    return [spec for spec in specs if TEXT.name in spec.inputs and ABLE[what](spec)]


class Capable:
    """Chooses models by SIE_DOOR_TEI_MODEL: the first named model that can; without names the only served one."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._named = words(door.settings.door_tei_model)

    async def spec(self, what: str) -> ModelSpec:
        """Return the model to use for `what`, one of ABLE; if it is not clear, Failure names the setting to change."""
        return self._choice(what, await self._candidates())

    async def default(self) -> tuple[str, ModelSpec]:
        """Return the first kind of result in ABLE that a model returns, and the model to use for it, as `spec` does."""
        candidates = await self._candidates()
        what = next((what for what in ABLE if able(candidates, what)), DENSE_VECTORS)
        return what, self._choice(what, candidates)

    def _choice(self, what: str, candidates: Iterable[ModelSpec]) -> ModelSpec:
        found = able(candidates, what)
        if len(found) == 1 or (found and self._named):
            return found[0]
        raise _unclear(what, self._named or [spec.model for spec in found], is_named=bool(self._named))

    async def _candidates(self) -> list[ModelSpec]:
        names = self._named or await self._door.backend.names()
        return [spec for spec in await asyncio.gather(*map(self._spec, names)) if spec is not None]

    async def _spec(self, model: str) -> ModelSpec | None:
        try:
            return await self._door.served.spec(model)
        except NotServed:
            return None


class Explaining:
    """Context manager that explains an InputError by the model's specification, if the model cannot serve the request.

    Triton's own message would name tensors instead.
    """

    __slots__ = ("_door", "_items", "_model", "_output", "_verb")

    def __init__(self, door: Door, model: str, verb: str, items: Items, output: str = "") -> None:
        self._door, self._model, self._verb, self._items, self._output = door, model, verb, items, output

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, InputError) and not isinstance(error, NotServed):
            reason = await _reason(self._door, self._model, self._verb, self._items, self._output)
            if reason is not None:
                raise reason from error.__cause__


async def _reason(door: Door, model: str, verb: str, items: Items, output: str) -> InputError | None:
    try:
        spec = await door.served.spec(model)
    except SIEError:
        return None
    return unable(spec, verb, {kind for item in items for kind in item}, output)


def unable(spec: ModelSpec, verb: str, kinds: Iterable[str], output: str = "") -> InputError | None:
    """Return why a model cannot do `verb` with items of these kinds; None if it can."""
    if verb not in spec.tasks:
        return InputError.at("model", f"{spec.model} does not {verb}; its tasks: {', '.join(spec.tasks)}")
    if output and output not in spec.dims:
        problem = f"{spec.model} does not return {output} vectors; it returns {', '.join(spec.dims)}"
        return InputError.at("model", problem)
    unread = [kind for kind in ITEMS if kind in kinds and kind not in spec.inputs]
    if not unread:
        return None
    return InputError.at(unread[0], f"{spec.model} does not read it; it reads {', '.join(spec.inputs)}")


def _unclear(what: str, models: Sequence[str], *, is_named: bool) -> Failure:
    names = ", ".join(models)
    if is_named:
        message = f"SIE_DOOR_TEI_MODEL: none of {names} is served and returns {what}; name a model that does"
    elif models:
        message = f"several models return {what}: {names}; set SIE_DOOR_TEI_MODEL to one of them"
    else:
        message = f"no served model returns {what}; serve one, or use another route"
    return Failure("not_served", message)
