"""docs/client.md: each public method of `SIEClient`, with its arguments, results and errors."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_origin, get_type_hints

import numpy as np

from sie_triton.client import AsyncSIEClient, SIEClient, maxsim, types
from sie_triton.client.calls import PIECE_BYTES, PIECE_ITEMS
from sie_triton.client.limits import ClientLimits
from sie_triton.contract import PAGES, VERBS
from tools.pages.parameters import MODEL
from tools.pages.tables import table

INTRODUCTION = """\
# Client

<!-- Generated from the docstrings of sie_triton/client/ and from tools/pages/client.py by
`python -m tools.pages`. -->

`SIEClient` and `AsyncSIEClient` call Triton's own ports, 8000 for HTTP and 8001 for gRPC; `http://host:8000/prefix`
reaches a server behind a proxy. They need no extra of this package ([installation](installation.md#with-pip)). A
gateway's gRPC, or a proxy, may require a `token` and TLS (`https`, `grpcs`). A server that is
[exposed with tokens](security.md#expose-the-server) shows [the door](door.md) only, which other clients call.

## SIEClient

{sync}

## AsyncSIEClient

{asynchronous}

The methods below are coroutines of `AsyncSIEClient`, with the same arguments, results and errors.

```python
import asyncio

from sie_triton import AsyncSIEClient


async def main():
    async with AsyncSIEClient("http://localhost:8000", timeout=30) as client:
        dense, scores = await asyncio.gather(
            client.encode("my/dense", "Hello"),
            client.score("my/cross-encoder", "What climbs?", ["Ships sail.", "Roses climb."]),
        )
    print(dense["dense"].shape)  # (384,)


asyncio.run(main())
```

## Items

{items} A call of more than {num_items} items, or {num_kib} KiB of text, is sent as several requests.
"""

ERRORS = f"""
## Errors

Every error is a subclass of `SIEError`. `kind`, `field` and `retry_after_s` are for programs
([kinds](failures.md#kinds-of-errors)). An unknown keyword argument raises TypeError.

| error | when | retried by the client |
|---|---|---|
| `InputError` | the request is invalid, or the model is not served; the message says what is allowed | no |
| `BusyError` | the server is busy or restarting, or the timeout has passed | until `timeout` has passed; without a \
timeout for {ClientLimits.retry_s:.0f} s |
| `Unreachable`, a `BusyError` | no server answers at the address | until `timeout` has passed; without a timeout for \
{ClientLimits.retry_s:.0f} s if the server has answered this client before, else for \
{ClientLimits.first_retry_s:.0f} s |
| `LoadError` | the model cannot be loaded; `reason` says why, `is_permanent` that retrying cannot help | no; the \
first request after 30 s loads again, unless `is_permanent` |
| `ModelError` | the forward pass failed | no |
| `OutOfMemory`, a `ModelError` | the device has no memory for an item now | as `BusyError` |
| `Cancelled` | the client is closed | no |
| `SIEError` itself | the server at the address is not Triton, or does not serve models of this package | no |

Before each retry the client waits for a random time of at most 0.1, 0.2, 0.4 … 2 s. With
`retry=False` a client never retries. The other exceptions are imported like those below:
`from sie_triton import ModelError, SIEError`, `from sie_triton.errors import Cancelled, OutOfMemory, Unreachable`; an
`InputError` for a model that is not served is `sie_triton.client.failures.NotServed`.

```python
from sie_triton import BusyError, InputError, LoadError, SIEClient

with SIEClient("http://localhost:8000", timeout=30) as client:
    try:
        client.encode("my/dance", "Hello")
    except InputError as error:
        print(error)  # model: my/dance is not served; served models: my/dense, …
    except LoadError as error:
        print(error.reason, error.is_permanent)
    except BusyError:
        print("try again later")
```
"""

# Examples of the methods; `page` fails if the clients have other methods.
EXAMPLES: Mapping[str, str] = {
    "encode": """\
with SIEClient("http://localhost:8000") as client:
    result = client.encode("my/dense", "Hello, world", is_query=True, options={"dimensions": 128})
    print(result["dense"].shape)  # (128,)
    results = client.encode("my/dense", [{"text": "Hello", "id": "a"}, "Bonjour"], timeout=30)
    print([result.get("id") for result in results])  # ["a", None]
""",
    "score": """\
with SIEClient("http://localhost:8000") as client:
    result = client.score("my/cross-encoder", "What climbs?", ["Ships sail.", {"text": "Roses climb.", "id": "r"}])
    print(result["scores"])  # [{"item_id": "r", "score": 0.98, "rank": 0}, {"item_id": "item-0", …, "rank": 1}]
""",
    "extract": """\
with SIEClient("http://localhost:8000") as client:
    result = client.extract("my/gliner", "Ada lived in London.", ["person", "city"], threshold={"person": 0.5})
    print(result["entities"])  # [{"text": "Ada", "label": "person", "score": 0.98, "start": 0, "end": 3}, …]
""",
    "list_models": """\
with SIEClient("http://localhost:8000") as client:
    print(client.list_models())  # ["my/cross-encoder", "my/dense", …]
""",
    "close": """\
client = SIEClient("grpc://localhost:8001")
client.encode("my/dense", "Hello")
client.close()
""",
}

# Keyword arguments of each verb, and its result.
VERB_TYPES = {
    "encode": (types.EncodeOptions, types.EncodeResult),
    "score": (types.ScoreOptions, types.ScoreResult),
    "extract": (types.ExtractOptions, types.ExtractResult),
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

# What an instruction is, by verb.
INSTRUCTIONS = {
    "encode": "prompt to put before each text in place of the model's own, or {instruction} in the profile's template",
    "score": "prompt to put before the query in place of the model's own",
    "extract": "question or prompt, for families that read one, such as donut and glm_ocr; others refuse it",
}

# Arguments that are no parameter of every model of the verb.
DOCS = {
    "lora": "LoRA adapter to apply; None: the profile's, if it has one; an empty string: none",
    "threshold": "minimum score of a result, from 0 to 1, or a mapping from labels to minimum scores; a label that is "
    "not in the mapping has the minimum of the profile, else of the family",
    "label_descriptions": "descriptions by label, which the model reads in place of the labels",
    "flat_ner": "true: entities do not overlap",
    "multi_label": "true: the same words, or the same text, may have several labels",
    "output_schema": "JSON Schema, or pydantic model, of the object to return in `data`",
    "options": "further [parameters](parameters.md) by name",
    "timeout": "seconds for the whole call with its retries; default: the client's `timeout`",
}


def page() -> str:
    """Return the page; ValueError if EXAMPLES or one of the clients has other methods."""
    methods = public_methods(SIEClient)
    if not methods.keys() == public_methods(AsyncSIEClient).keys() == EXAMPLES.keys():
        raise ValueError(f"SIEClient has the methods {', '.join(methods)}; AsyncSIEClient or EXAMPLES has others")
    introduction = INTRODUCTION.format(
        sync=described(SIEClient),
        asynchronous=described(AsyncSIEClient),
        items=docstring(types.Item),
        num_items=PIECE_ITEMS,
        num_kib=PIECE_BYTES // 1024,
    )
    results = "".join(f"\n### {each.__name__}\n\n{docstring(each)}\n\n{_keys(each)}\n" for each in RESULTS)
    sections = "".join(_section(name, methods[name]) for name in EXAMPLES)
    return f"{introduction}{sections}\n## maxsim\n\n{described(maxsim)}\n\n## Results\n{results}{ERRORS}"


def public_methods(client: type) -> dict[str, Callable[..., Any]]:
    return {name: method for name, method in vars(client).items() if name[0] != "_" and inspect.isfunction(method)}


def described(documented: Callable[..., Any]) -> str:
    """Return name, arguments and docstring.

    >>> described(public_methods)
    '`public_methods(client)`\\n\\n'
    """
    signature = inspect.signature(documented)
    arguments = [each.replace(annotation=each.empty) for each in signature.parameters.values() if each.name != "self"]
    call = signature.replace(parameters=arguments, return_annotation=signature.empty)
    return f"`{documented.__name__}{call}`\n\n{docstring(documented)}"


def docstring(documented: Any) -> str:
    """Return the docstring without examples, one line a paragraph."""
    text = (inspect.getdoc(documented) or "").partition(">>>")[0]
    return "\n\n".join(" ".join(each.split()) for each in text.strip().split("\n\n"))


def shown_type(hint: Any) -> str:
    """Return a type as a reader would write it.

    >>> shown_type(Mapping[str, float] | None), shown_type(np.ndarray[Any, Any]), shown_type(list[types.Entity])
    ('Mapping[str, float] | None', 'array', 'list[Entity]')
    """
    if get_origin(hint) is np.ndarray:
        return "array"
    text = inspect.formatannotation(hint)
    for module in ("collections.abc", "typing", types.__name__):
        text = text.replace(f"{module}.", "")
    return text


def _section(name: str, method: Callable[..., Any]) -> str:
    parts = [f"## {name}", described(method)]
    if name in VERB_TYPES:
        options, result = VERB_TYPES[name]
        link = f"[`{result.__name__}`](#{result.__name__.lower()})"
        parts += [_options(name, options), f"Result: {link}; exceptions: [below](#errors)."]
    example = f"```python\nfrom sie_triton import SIEClient\n\n{EXAMPLES[name]}```"
    return "\n" + "\n\n".join(part.rstrip("\n") for part in (*parts, example)) + "\n"


def _options(verb: str, options: type) -> str:
    docs = {each.name: each.doc for each in (PAGES, *VERBS[verb].parameters(MODEL))} | DOCS
    docs["instruction"] = INSTRUCTIONS[verb]
    return table(["option", "type", "effect"], ([f"`{name}`", kind, docs[name]] for name, kind in _types(options)))


def _keys(result: type) -> str:
    return "Keys: " + ", ".join(f"`{name}` ({kind})" for name, kind in _types(result)) + "."


def _types(fields: type) -> Iterator[tuple[str, str]]:
    """Yield name and type of each key of a TypedDict."""
    for name, hint in get_type_hints(fields).items():
        yield name, shown_type(hint)
