"""Causal cross-encoders: a language model judges query and text, whose chat template has a role for each.

system prompt, query and text → chat template → language model → logits of one or two tokens → score

CrossEncoder of sentence-transformers saves them, with a module LogitScore.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from sie_triton.checkpoints.architecture import architecture
from sie_triton.checkpoints.chat_template import FILE
from sie_triton.checkpoints.cross_encoder import activation_of
from sie_triton.checkpoints.files import Fields, shortened
from sie_triton.checkpoints.library_keys import OF_TEMPLATES, check_keys
from sie_triton.checkpoints.modules import (
    CROSS_ENCODER,
    TextFiles,
    check_saved_as,
    module_keys,
    modules_of,
    saved_settings,
)
from sie_triton.checkpoints.transformer_settings import GENERATION, settings_of
from sie_triton.contract import Features, Ragged
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, TRUNCATED
from sie_triton.errors import BusyError, InputError, LoadError
from sie_triton.models.families.base import Recognised, TextFamily
from sie_triton.models.inputs.chat_template import ChatTemplate, Message
from sie_triton.models.inputs.cutting import kept
from sie_triton.models.inputs.limits import LIMITS
from sie_triton.models.inputs.prompt import Prompted
from sie_triton.models.inputs.tokenizer import MUCH, TextTokenizer, log_disagreements, packed_ids, read_tokenizer

LOGIT_SCORE = "LogitScore"


@dataclass(frozen=True, slots=True)
class CausalFiles:
    """Files of a causal cross-encoder."""

    text: TextFiles
    tokens: tuple[int, ...]  # the score is the logit of the first, less that of the second if there is one
    activation: str  # of that score: dotted name of a torch.nn class
    is_structured: bool  # messages have lists of parts
    arguments: Mapping[str, bool]  # of the chat template

    @classmethod
    def read(cls, directory: Path) -> "CausalFiles":
        """Read the files; raise LoadError naming the file or module that cannot be used."""
        kinds = modules_of(directory)
        chain = [kind for kind, _ in kinds]
        if chain != ["Transformer", LOGIT_SCORE]:
            message = f"modules.json in {directory}: {' → '.join(chain)} cannot be served"
            raise LoadError(f"{message}; supported is Transformer → {LOGIT_SCORE}", "unsupported")
        check_saved_as(directory, (CROSS_ENCODER,))
        text = TextFiles.read(directory)
        settings = settings_of(text.transformer)
        if text.task != GENERATION:
            message = f"transformer_task: {shortened(text.task)} cannot be served"
            raise settings.unserved(f"{message}; this family needs {GENERATION}")
        arguments = check_keys(settings.fields("processing_kwargs").fields("chat_template"), OF_TEMPLATES)
        changed = [name for name in ("add_generation_prompt", "enable_thinking") if arguments.has(name)]
        size = text.config.integer("vocab_size", least=1)
        score = module_keys(LOGIT_SCORE, kinds[1][1])
        tokens = [score.integer(key, most=size - 1) for key in ("true_token_id", "false_token_id") if score.has(key)]
        if not score.has("true_token_id"):
            raise score.corrupt("true_token_id is missing")
        return cls(
            text=text,
            tokens=tuple(tokens),
            activation=activation_of(saved_settings(directory), text.config),
            is_structured=_message_format(settings) == "structured",
            arguments={"add_generation_prompt": False} | {name: arguments.flag(name, False) for name in changed},
        )

    @property
    def reason(self) -> str:
        """The file that makes the directory a causal cross-encoder, and the setting in it."""
        name = architecture(self.text.config) or "a language model"
        tokens = " and ".join(map(str, self.tokens))
        return f"modules.json: {name}, {LOGIT_SCORE} of {tokens}, {self.activation.rpartition('.')[2]}"


def _message_format(settings: Fields) -> str:
    """Return how messages hold their texts; raise LoadError if the library does not write pairs as messages."""
    ways = settings.fields("modality_config")
    if not ways.has("message"):
        message = "without message, the library reads query and text without the chat template"
        raise ways.unserved(f"{message}, which this family does not support")
    way = ways.fields("message")
    method, output = way.text("method", "forward"), way.text("method_output_name", "logits")
    if (method, output) != ("forward", "logits"):
        raise way.unserved(f"{shortened(method)} → {shortened(output)} cannot be served; supported is forward → logits")
    return way.one_of("format", ("flat", "structured"))


class CausalCrossEncoder(TextFamily):
    scores_pairs = True
    features = (INPUT_IDS,)
    takes_loras = True
    reference_adapters = ("native_causal_cross_encoder:NativeCausalCrossEncoderAdapter",)
    files = (FILE,)

    def recognise(self, directory: Path) -> Recognised | None:
        if LOGIT_SCORE not in [kind for kind, _ in modules_of(directory)]:
            return None
        files = CausalFiles.read(directory)
        weights = (files.text.transformer,)
        return Recognised(files.reason, files.text.max_sequence_length, {}, scores=True, weights=weights)


# Texts in place of query and document: pairs that differ in one of them, and in all.
FILLERS = (("0", "0"), ("1 2 3 4", "0"), ("0", "1 2 3 4"), ("1 2 3 4", "1 2 3 4"))


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

    def question(self, query: str, instruction: str | None) -> Prompted[Any]:
        """Return the system prompt, which may be empty, and the query."""
        prompt = self.default_prompt if instruction is None else instruction
        return Prompted(lambda: (prompt, self.shortened(query, self._max_length)), len(prompt) + len(query))

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        written = [self._written(prompt, query, self._short(text)) for (prompt, query), text in framed]
        encodings = self._tokenizer.encode_batch_fast(written, add_special_tokens=False)
        rows = [self._ended(encoding.ids, prompt) for ((prompt, _), _), encoding in zip(framed, encodings, strict=True)]
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
