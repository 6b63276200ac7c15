"""What is put around a text before it is tokenized."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sie_triton.spec import Profile


@dataclass(frozen=True, slots=True)
class Prompt:
    """Texts are never looked into: braces in them are just characters."""

    before: str = ""
    after: str = ""

    @property
    def num_characters(self) -> int:
        return len(self.before) + len(self.after)

    def around(self, text: str) -> str:
        return f"{self.before}{text}{self.after}"


def prompt_of(prompts: Mapping[str, str], default: str, profile: Profile, options: Mapping[str, Any]) -> Prompt:
    """By the profile's template for the role, else the request's instruction, else the model's own prompts.

    `options` are the request's parameters; without `is_query` a text is a document to a template, and gets `default`
    from the model's own prompts.

    >>> prompt_of({"query": "q: ", "document": "d: "}, "", Profile(), {"is_query": True}).around("x")
    'q: x'
    >>> profile = Profile(query_template="Instruct: {instruction}; {text}!", query_instruction="find")
    >>> prompt_of({}, "", profile, {"is_query": True}).around("{text}")
    'Instruct: find; {text}!'
    """
    is_query = options.get("is_query")
    instruction = options.get("instruction", profile.instruction or None)
    template = profile.query_template if is_query else profile.document_template
    if template:
        if instruction is None:
            instruction = profile.query_instruction if is_query else ""
        before, _, after = template.partition("{text}")
        return Prompt(before.replace("{instruction}", instruction), after.replace("{instruction}", instruction))
    if instruction is not None:
        return Prompt(str(instruction))
    if is_query is None:
        return Prompt(default)
    roles = ("query",) if is_query else ("document", "passage")
    return Prompt(next((prompts[role] for role in roles if role in prompts), ""))
