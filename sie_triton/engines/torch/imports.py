"""The imports of every worker: seconds of work that the fork server does once for all."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from sie_triton.engines.torch.openmp import wait_briefly

VISIBLE = "CUDA_VISIBLE_DEVICES"

COMPILER = "torch._dynamo"
# transformers imports a context manager from this part of the compiler, and uses it in unusual attention masks.
INDEXING, TRANSFORM = f"{COMPILER}._trace_wrapped_higher_order_op", "TransformGetItemToIndex"

# Questions that transformers asks when it is imported.
ABOUT_TRAINING = ("is_scipy_available", "is_torch_distributed_available")


def import_all() -> None:
    wait_briefly()
    with without_parts_of_gpus(), without_training():
        from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, PreTrainedModel  # noqa: F401
        from transformers.models.bert import modeling_bert  # noqa: F401

        import sie_triton.engines.torch.engine  # noqa: F401


@contextmanager
def without_parts_of_gpus() -> Iterator[None]:
    """Within the context, show a whole GPU instead of MIG parts, which PyTorch counts by CUDA instead of by NVML."""
    given = os.environ.get(VISIBLE, "")
    if given.startswith("MIG-"):
        os.environ[VISIBLE] = "0"
    try:
        yield
    finally:
        if given:
            os.environ[VISIBLE] = given


@contextmanager
def without_training() -> Iterator[None]:
    """Within the context, transformers is imported without SciPy, torch.distributed and PyTorch's compiler.

    It imports them for losses, sharded models and compiled ones, which a worker has none of: more than half of the
    time, and 100 MB (docs/decisions/processes.md). Whoever asks for the compiler later gets the real one.
    """
    if "transformers.modeling_utils" in sys.modules:
        yield
        return
    modules = [import_module(name) for name in ("transformers.utils", "transformers.utils.import_utils")]
    known = [{name: vars(each)[name] for name in ABOUT_TRAINING if name in vars(each)} for each in modules]
    try:
        for each, answers in zip(modules, known, strict=True):
            vars(each).update(dict.fromkeys(answers, lambda: False))
        if COMPILER not in sys.modules:
            sys.modules.update({COMPILER: _compiler(), INDEXING: _indexing()})
        yield
    finally:
        for each, answers in zip(modules, known, strict=True):
            vars(each).update(answers)
        _remove_stand_ins()


class _StandIn(ModuleType):
    """Stands for a part of the compiler; imports the real one if somebody asks for more than the stand-in has."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _remove_stand_ins()
        return getattr(import_module(self.__name__), name)


def _compiler() -> ModuleType:
    """Return a stand-in with the decorators for functions that are not to be compiled, or only as a whole."""
    stand_in = _StandIn(COMPILER)
    vars(stand_in).update(dict.fromkeys(("allow_in_graph", "assume_constant_result", "disable"), _unchanged))
    torch = find_spec("torch")
    folders = torch.submodule_search_locations if torch else None
    stand_in.__path__ = [str(Path(folder) / "_dynamo") for folder in folders or ()]
    return stand_in


def _indexing() -> ModuleType:
    stand_in = _StandIn(INDEXING)
    vars(stand_in)[TRANSFORM] = lambda: getattr(import_module(INDEXING), TRANSFORM)()
    return stand_in


def _remove_stand_ins() -> None:
    for name in (COMPILER, INDEXING):
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]


def _unchanged(function: Callable[..., Any] | None = None, *_: object, **options: object) -> Any:
    """Return the function itself; without one, a decorator that does."""
    return _unchanged if function is None else function
