"""docs/client.md: each public method of `SIEClient`, with its arguments, results and errors."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from sie_triton.client import AsyncSIEClient, SIEClient, maxsim, types
from sie_triton.client.calls import PIECE_BYTES, PIECE_ITEMS
from sie_triton.client.limits import ClientLimits
from sie_triton.contract import PAGES, VERBS
from sie_triton.models.families import FAMILIES, family
from tools.pages.parameters import MODEL

INTRODUCTION = """\
# Client

<!-- Generated from the docstrings of sie_triton/client/ and from tools/pages/client.py by
`python -m tools.pages`. -->

`SIEClient` and `AsyncSIEClient` call Triton's own ports, 8000 for HTTP and 8001 for gRPC; `http://host:8000/prefix`
reaches a server behind a proxy. They need no [extra](installation.md#with-pip) of this package. A server
[with tokens](security.md#expose-the-server) shows only [the door](door.md), which other clients call.

```python
{example}```

## SIEClient

{sync}

## AsyncSIEClient

{asynchronous} Its methods are coroutines with the same arguments, results and errors:

```python
import asyncio

from sie_triton import AsyncSIEClient


async def main():
    async with AsyncSIEClient("http://localhost:8000") as client:
        one, other = await asyncio.gather(client.encode("my/dense", "Hello"), client.encode("my/dense", "Bonjour"))
    print(one["dense"].shape)  # (384,)


asyncio.run(main())
```

## Items

{items} A call of more than {num_items} items, or {num_kib} KiB of text, is sent as several requests.

## Methods

{methods}
## Options

These keyword arguments are [parameters](parameters.md): {of_verbs}.
`output_types` is a sequence. All methods also take `options` and `timeout`; extract takes the others:

{options}
## Results

{results}"""

ERRORS = f"""
## Errors

Every error is a `SIEError`, with `kind`, `field` and `retry_after_s` for programs
([kinds](failures.md#kinds-of-errors)).

- `InputError`: the request is invalid, or the model is not served
- `BusyError`: the server is busy or restarting, or the timeout has passed; the client retries until then, without a \
timeout for {ClientLimits.retry_s:.0f} s, after random times of at most 0.1, 0.2, 0.4 … 2 s
- `Unreachable`, a `BusyError`: no server answers; without a timeout, it is retried for \
{ClientLimits.first_retry_s:.0f} s if no server has answered this client yet
- `LoadError`: the model cannot be loaded: `reason`; the first request after 30 s loads again, unless `is_permanent`
- `ModelError`: the forward pass failed
- `OutOfMemory`, a `ModelError`: the device has no memory for an item now; retried as `BusyError`
- `Cancelled`: the client is closed
- `SIEError` itself: the server is not Triton, or does not serve models of this package

`Cancelled`, `OutOfMemory` and `Unreachable` are in `sie_triton.errors`, the others in `sie_triton`.
"""

# `page` fails if this calls other methods than the clients have.
EXAMPLE = """\
from sie_triton import SIEClient

client = SIEClient("http://localhost:8000", timeout=30)
print(client.list_models())  # ["my/cross-encoder", "my/dense", …]
result = client.encode("my/dense", "Hello, world", is_query=True, options={"dimensions": 128})
print(result["dense"].shape)  # (128,)
results = client.encode("my/dense", [{"text": "Hello", "id": "a"}, "Bonjour"])
print([result.get("id") for result in results])  # ["a", None]
result = client.score("my/cross-encoder", "What climbs?", ["Ships sail.", {"text": "Roses climb.", "id": "r"}])
print(result["scores"])  # [{"item_id": "r", "score": 0.98, "rank": 0}, {"item_id": "item-0", …, "rank": 1}]
result = client.extract("my/gliner", "Ada lived in London.", ["person", "city"], threshold={"person": 0.5})
print(result["entities"])  # [{"text": "Ada", "label": "person", "score": 0.98, "start": 0, "end": 3}, …]
client.close()  # or `with SIEClient(…) as client:`
"""

# Keyword arguments of each verb.
OPTIONS: Mapping[str, type] = {
    "encode": types.EncodeOptions,
    "score": types.ScoreOptions,
    "extract": types.ExtractOptions,
}
RESULTS = (
    types.EncodeResult,
    types.SparseVector,
    types.ScoreResult,
    types.ScoreEntry,
    types.ExtractResult,
    types.Entity,
    types.Relation,
    types.Classification,
    types.Object,
    types.Timing,
)

# Arguments that are no parameters, or not the same.
DOCS = {
    "threshold": "minimum score, from 0 to 1, or a mapping from labels to it; other labels have that of the profile, "
    "else of the family",
    "output_schema": "JSON Schema, or pydantic model, of the object to return in `data`",
    "options": "further [parameters](parameters.md) by name",
    "timeout": "seconds for the whole call with its retries; default: the client's `timeout`",
}


def page() -> str:
    """Return the page; ValueError if EXAMPLE or one of the clients has other methods."""
    methods = public_methods(SIEClient)
    if not methods.keys() == public_methods(AsyncSIEClient).keys() == set(re.findall(r"client\.(\w+)\(", EXAMPLE)):
        raise ValueError(f"SIEClient has the methods {', '.join(methods)}; AsyncSIEClient or EXAMPLE has others")
    introduction = INTRODUCTION.format(
        example=EXAMPLE,
        sync=f"{called(SIEClient)}\n\n{docstring(SIEClient)}",
        asynchronous=docstring(AsyncSIEClient),
        items=docstring(types.Item),
        num_items=PIECE_ITEMS,
        num_kib=PIECE_BYTES // 1024,
        methods="".join(_listed(called(each), each) for each in (*methods.values(), maxsim)),
        of_verbs=_parameters_of_verbs(),
        options=_options(),
        results="".join(map(_result, RESULTS)),
    )
    return introduction + ERRORS


def public_methods(client: type) -> dict[str, Callable[..., Any]]:
    return {name: method for name, method in vars(client).items() if name[0] != "_" and inspect.isfunction(method)}


def called(documented: Callable[..., Any]) -> str:
    """Return name and arguments.

    >>> called(public_methods)
    '`public_methods(client)`'
    """
    signature = inspect.signature(documented)
    arguments = [each.replace(annotation=each.empty) for each in signature.parameters.values() if each.name != "self"]
    call = signature.replace(parameters=arguments, return_annotation=signature.empty)
    return f"`{documented.__name__}{call}`"


def docstring(documented: Any) -> str:
    """Return the docstring without examples, one line a paragraph."""
    text = (inspect.getdoc(documented) or "").partition(">>>")[0]
    return "\n\n".join(" ".join(each.split()) for each in text.strip().split("\n\n"))


def _listed(title: str, documented: Any) -> str:
    return f"- {title}: {' '.join(docstring(documented).split())}\n"


def _parameters(verb: str) -> list[str]:
    """Return the arguments that are parameters of models of the verb."""
    of_families = (each for name in FAMILIES for each in family(name).parameters)
    parameters = {each.name for each in (PAGES, *VERBS[verb].parameters(MODEL), *of_families)} - DOCS.keys()
    return [f"`{name}`" for name in get_type_hints(OPTIONS[verb]) if name in parameters]


def _parameters_of_verbs() -> str:
    of_verbs = {verb: _parameters(verb) for verb in OPTIONS}
    of_all = [name for name in of_verbs["encode"] if all(name in names for names in of_verbs.values())]
    others = {verb: [name for name in names if name not in of_all] for verb, names in of_verbs.items()}
    more = "".join(f"; of {verb} also {', '.join(names)}" for verb, names in others.items() if names)
    return ", ".join(of_all) + more


def _options() -> str:
    """Return a line for each other argument."""
    parameters = {name for verb in OPTIONS for name in _parameters(verb)}
    names = dict.fromkeys(name for options in OPTIONS.values() for name in get_type_hints(options))
    return "".join(f"- `{name}`: {DOCS[name]}\n" for name in names if f"`{name}`" not in parameters)


def _result(result: type) -> str:
    keys = ", ".join(f"`{name}`" for name in get_type_hints(result))
    return _listed(f"**{result.__name__}** ({keys})", result)
