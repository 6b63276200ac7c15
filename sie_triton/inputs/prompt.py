"""Prompts: what is put around a text before it is tokenized."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sie_triton.contract import Part
from sie_triton.spec import Profile


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


class Question:
    """A text that the model reads together with each text of a part, which is preceded by `before`.

    `make` is called once, when the first text is read. `size` is an estimate.
    """

    def __init__(self, make: Callable[[], str], size: int, before: str = "") -> None:
        self._make = make
        self._before = before
        self.size = size

    @cached_property
    def text(self) -> str:
        return self._make()

    def around(self, text: str) -> Any:
        return self.text, self._before + text


def prompt_of(prompts: Mapping[str, str], default: str, part: Part) -> Prompt:
    """Return the prompt of a part: the profile's template for the role, else the instruction, else the model's prompt.

    If the role is unknown, the profile's template for documents applies, and `default` is the model's prompt.

    >>> prompt_of({"query": "q: ", "document": "d: "}, "", Part("text", [], is_query=True)).around("x")
    'q: x'
    >>> from sie_triton.spec import Profile
    >>> profile = Profile(query_template="Instruct: {instruction}; {text}!", query_instruction="find")
    >>> prompt_of({}, "", Part("text", [], profile, is_query=True)).around("{text}")
    'Instruct: find; {text}!'
    """
    profile, is_query, instruction = part.profile, part.is_query, part.instruction
    template = profile.query_template if is_query else profile.document_template
    if template:
        if instruction is None:
            instruction = profile.query_instruction if is_query else ""
        before, _, after = template.partition("{text}")
        return Prompt(before.replace("{instruction}", instruction), after.replace("{instruction}", instruction))
    if instruction is not None:
        return Prompt(instruction)
    return Prompt(default if is_query is None else own_prompt(prompts, is_query))


def own_prompt(prompts: Mapping[str, str], is_query: bool) -> str:
    """Return the prompt in a model's files for a role, by the names that sentence-transformers uses."""
    names = ("query",) if is_query else ("document", "passage", "corpus")
    return next((prompts[name] for name in names if name in prompts), "")


def overridden(prompts: Mapping[str, str], profile: Profile) -> Iterator[str]:
    """Yield a message for each prompt in a model's files that the profile's template or instruction overrides."""
    for role, is_query in (("query", True), ("document", False)):
        own = Prompt(own_prompt(prompts, is_query))
        used = prompt_of(prompts, "", Part("text", [], profile, is_query, profile.instruction))
        if own.before and used != own:
            yield (
                f"profile {profile.name}: a {role} is read as {used.around('…')!r}, as the model file says, "
                f"not as {own.around('…')!r}, the prompt in the model's own files"
            )
