"""Import classes that this package or another installed one names as `module:Class`: never by a name in a file."""

from importlib import import_module
from typing import TypeVar

from sie_triton.errors import LoadError

Kind = TypeVar("Kind")


def class_named(path: str, kind: type[Kind], what: str) -> type[Kind]:
    """Return the class at `path`, a subclass of `kind`; else raise a LoadError whose message begins with `what`.

    >>> class_named("fractions:Fraction", object, "number exact")
    <class 'fractions.Fraction'>
    >>> class_named("fractions:Fraction", str, "number exact")
    Traceback (most recent call last):
    sie_triton.errors.LoadError: number exact: is not a builtins.str
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(import_module(module), name)
    except Exception as exc:  # another package's module may raise anything
        raise LoadError(f"{what}: cannot be imported ({exc})", "dependency") from exc
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise LoadError(f"{what}: is not a {kind.__module__.removesuffix('.base')}.{kind.__name__}", "unsupported")
    return found
