"""Query and text → the conversation that the model's chat template writes, as packed token ids. No torch."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from sie_triton.contract import Features, Ragged
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import TRUNCATED
from sie_triton.errors import BusyError, InputError, LoadError
from sie_triton.models.families.causal_cross_encoder.files import CausalFiles
from sie_triton.models.inputs.chat_template import ChatTemplate, Message
from sie_triton.models.inputs.cutting import kept
from sie_triton.models.inputs.limits import LIMITS
from sie_triton.models.inputs.prompt import Question
from sie_triton.models.inputs.tokenizer import MUCH, TextTokenizer, log_disagreements, packed_ids, read_tokenizer

# Texts in place of query and document: pairs that differ in one of them, and in all.
FILLERS = (("0", "0"), ("1 2 3 4", "0"), ("0", "1 2 3 4"), ("1 2 3 4", "1 2 3 4"))


class Conversation(Question):
    """A query that the model reads with each text, after a system prompt, which may be empty."""

    def __init__(self, prompt: str, make: Callable[[], str], size: int) -> None:
        super().__init__(make, len(prompt) + size)
        self._prompt = prompt

    def around(self, text: str) -> Any:
        return self._prompt, self.text, text


class ConversationTokenizer(TextTokenizer):
    """Tokenizer of conversations. Of one that is too long, the end that the template writes replaces the last tokens,
    as in sentence-transformers.
    """

    reads_pairs = True

    def __init__(self, tokenizer: tokenizers.Tokenizer, files: CausalFiles, template: ChatTemplate) -> None:
        super().__init__(tokenizer, files.text)
        self._files, self._template = files, template
        self._ending = lru_cache(LIMITS.max_kept_conversations)(self._ending_of)
        self._check()

    def question(self, query: str, instruction: str | None) -> Question:
        prompt = self.default_prompt if instruction is None else instruction
        return Conversation(prompt, lambda: self.shortened(query, self._max_length), len(query))

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        written = [self._written(prompt, query, self._short(text)) for prompt, query, text in framed]
        encodings = self._tokenizer.encode_batch_fast(written, add_special_tokens=False)
        rows = [self._ended(encoding.ids, prompt) for (prompt, _, _), encoding in zip(framed, encodings, strict=True)]
        cut = np.array([bool(encoding.overflowing) for encoding in encodings])
        return {**packed_ids(rows), TRUNCATED.name: Ragged(cut)}

    def _short(self, text: str) -> str:
        return kept(self._tokenizer, text, MUCH * self._max_length)

    def _ended(self, ids: list[int], prompt: str) -> list[int]:
        """Return the ids with the end of a conversation in place of the last ones, if any may have been cut off."""
        ending = self._ending(prompt) if len(ids) >= self._max_length else []
        return [*ids[: max(0, len(ids) - len(ending))], *ending[-len(ids) :]]

    def _ending_of(self, prompt: str) -> list[int]:
        """Return the tokens that end each conversation with this system prompt.

        They are those that two conversations with different texts have in common.
        """
        first, *_, second = (self._tokens(prompt, *fillers) for fillers in FILLERS)
        if first.overflowing or second.overflowing:
            problem = f"leaves no room for query and text in the {self._max_length} tokens that the model reads"
            raise InputError.at("parameter instruction", f"{problem}; send a shorter one")
        same = np.cumprod([a == b for a, b in zip(reversed(first.ids), reversed(second.ids), strict=False)])
        count = int(same.sum())
        return list(first.ids[len(first.ids) - count :]) if count < min(len(first.ids), len(second.ids)) else []

    def _tokens(self, prompt: str, query: str, text: str) -> tokenizers.Encoding:
        return self._tokenizer.encode(self._written(prompt, query, text), add_special_tokens=False)

    def _written(self, prompt: str, query: str, text: str) -> str:
        roles = [("query", query), ("document", text)]
        return self._template.text([self._message(*each) for each in ([("system", prompt)] if prompt else []) + roles])

    def _message(self, role: str, text: str) -> Message:
        return {"role": role, "content": [{"type": "text", "text": text}] if self._files.is_structured else text}

    def _check(self) -> None:
        """Raise LoadError if the chat template does not write queries and texts, or leaves no room for them."""
        where = self._template.where
        try:
            plain, query, document, _ = (self._written(self.default_prompt, *fillers) for fillers in FILLERS)
            self._ending(self.default_prompt)
        except InputError as exc:
            raise LoadError(f"{where}: {exc}", "unsupported") from exc
        except BusyError as exc:
            raise LoadError(f"{where}: {exc}") from exc
        for role, written in (("query", query), ("document", document)):
            if written == plain:
                raise LoadError(f"{where}: does not write messages of the role {role}", "unsupported")


def load_processor(spec: ModelSpec, directory: Path) -> ConversationTokenizer:
    files = CausalFiles.read(directory)
    log_disagreements(files.text, spec.max_sequence_length)
    longest = min(spec.max_sequence_length, files.text.max_sequence_length)
    template = ChatTemplate.read(files.text.transformer, files.arguments)
    return ConversationTokenizer(read_tokenizer(files.text, longest), files, template)
