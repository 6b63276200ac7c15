"""Prompts, which are put around a text before it is tokenized."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from sie_triton.contract import Part, shown
from sie_triton.contract.spec import Profile
from sie_triton.errors import InputError

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Prompt:
    """Strings before and after a text. The text is not a template: braces in it are ordinary characters."""

    before: str = ""
    after: str = ""

    @property
    def size(self) -> int:
        return len(self.before) + len(self.after)

    def around(self, text: str) -> str:
        return f"{self.before}{text}{self.after}"


class Prompted(Generic[P]):
    """Frame that adds a prompt to each element of a part; `prompt` is made when the first element is read.

    `size` is an estimate.
    """

    def __init__(self, make: Callable[[], P], size: int) -> None:
        self._make = make
        self.size = size

    @cached_property
    def prompt(self) -> P:
        return self._make()

    def around(self, element: Any) -> tuple[P, Any]:
        return self.prompt, element


def prompt_of(prompts: Mapping[str, str], default: str, part: Part) -> Prompt:
    """Return the prompt of a part: the one it names, else the profile's template for its role, else the instruction,
    else the model's own prompt for its role.

    A text without a role is a document. `default`, the prompt that the model's files name for texts without a role,
    applies to it if the model has no prompt for documents. InputError if the part names a prompt that does not exist.

    >>> prompt_of({"query": "q: ", "document": "d: "}, "", Part("text", [], is_query=True)).around("x")
    'q: x'
    >>> from sie_triton.contract.spec import Profile
    >>> profile = Profile(query_template="Instruct: {instruction}; {text}!", query_instruction="find")
    >>> prompt_of({}, "", Part("text", [], profile, is_query=True)).around("{text}")
    'Instruct: find; {text}!'
    """
    profile, is_query, instruction = part.profile, part.is_query, part.instruction
    if part.prompt_name:
        return Prompt(_named(prompts, part.prompt_name))
    template = profile.query_template if is_query else profile.document_template
    if template:
        if instruction is None:
            instruction = profile.query_instruction if is_query else ""
        before, _, after = template.partition("{text}")
        return Prompt(before.replace("{instruction}", instruction), after.replace("{instruction}", instruction))
    if instruction is not None:
        return Prompt(instruction)
    return Prompt(own_prompt(prompts, bool(is_query)) or (default if is_query is None else ""))


def _named(prompts: Mapping[str, str], name: str) -> str:
    if name not in prompts:
        known = ", ".join(map(shown, prompts)) or "none"
        raise InputError.at("parameter prompt_name", f"the model has no prompt {shown(name)}; its prompts are {known}")
    return prompts[name]


def own_prompt(prompts: Mapping[str, str], is_query: bool) -> str:
    """Return the prompt in a model's files for a role, as sentence-transformers applies it.

    Its `encode_document` would also take the prompts passage and corpus, but finds an empty prompt `document` first in
    every model.
    """
    return prompts.get("query" if is_query else "document", "")


def overridden(prompts: Mapping[str, str], profile: Profile) -> Iterator[str]:
    """Yield a message for each prompt in a model's files that does not apply to texts of its role in a profile."""
    for role, is_query in (("query", True), ("document", False)):
        own = Prompt(own_prompt(prompts, is_query))
        used = prompt_of(prompts, "", Part("text", [], profile, is_query, profile.instruction))
        if own.before and used != own:
            yield (
                f"profile {profile.name}: a {role} is read as {used.around('…')!r}, as the model file says, "
                f"not as {own.around('…')!r}, the prompt in the model's own files"
            )
    unused = [name for name in ("passage", "corpus") if prompts.get(name)]
    if unused and not (prompts.get("document") or profile.document_template):
        yield (
            f"profile {profile.name}: documents are read without {' and '.join(unused)} of the model's prompts, as by "
            "sentence-transformers; requests can name it by prompt_name, a model file by doc_template"
        )
