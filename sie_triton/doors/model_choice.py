"""Choose the model of a request that names none, and explain why a model cannot serve a request."""

from collections.abc import Callable, Iterable, Sequence

from sie_triton.client.failures import NotServed
from sie_triton.contract import VERBS
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import ITEMS, TEXT
from sie_triton.doors.backend import Items
from sie_triton.doors.endpoint import Door
from sie_triton.doors.failures import Failure
from sie_triton.doors.fields import Body
from sie_triton.doors.schemas import models_of
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
        return await self._door.served.specs_of(self._named or await self._door.backend.names())


class Explaining:
    """Context manager that explains an InputError by the model's specification, if the model cannot serve the request.

    Triton's own message would name tensors instead, and parameters that `body` hides.
    """

    __slots__ = ("_asked",)

    def __init__(
        self, door: Door, model: str, verb: str, items: Items, output: str = "", body: Body | None = None
    ) -> None:
        self._asked = door, model, verb, items, output, body

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, InputError) and not isinstance(error, NotServed):
            door, model, verb, items, output, body = self._asked
            try:
                spec = await door.served.spec(model)
            except SIEError:
                return
            kinds = {kind for item in items for kind in item}
            if reason := unable(spec, verb, kinds, output) or (body and unknown(spec, verb, error.field, body)):
                raise reason from error.__cause__


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


def unknown(spec: ModelSpec, verb: str, field: str, body: Body) -> InputError | None:
    """Return an error for an unknown parameter that names those which the body may have; None for another field."""
    for model in models_of([spec]) if field in (body.model_extra or ()) else ():
        known = VERBS[verb].all_parameters(model).keys()
        if field not in known:
            return InputError.at(
                f"parameter {field}", f"unknown here; allowed are {', '.join(sorted(known - body.hidden()))}"
            )
    return None


def _unclear(what: str, models: Sequence[str], *, is_named: bool) -> Failure:
    names = ", ".join(models)
    if is_named:
        message = f"SIE_DOOR_TEI_MODEL: none of {names} is served and returns {what}; name a model that does"
    elif models:
        message = f"several models return {what}: {names}; set SIE_DOOR_TEI_MODEL to one of them"
    else:
        message = f"no served model returns {what}; serve one, or use another route"
    return Failure("not_served", message)
