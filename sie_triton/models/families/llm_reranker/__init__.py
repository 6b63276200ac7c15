"""LLM rerankers: a causal language model judges query and text by the probabilities of its next token."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import tokenizers
from annotated_types import MinLen

from sie_triton.checkpoints.modules import TextFiles
from sie_triton.contract import Features, Ragged
from sie_triton.contract.spec import REMOTE, TORCH, ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, TRUNCATED
from sie_triton.errors import LoadError
from sie_triton.models.families.base import Options, TextFamily
from sie_triton.models.inputs.cutting import beginning
from sie_triton.models.inputs.prompt import Prompted
from sie_triton.models.inputs.tokenizer import MUCH, TextTokenizer, log_disagreements, packed_ids, read_tokenizer


@dataclass(frozen=True)
class RerankerOptions(Options):
    """The prompt's form, and the two tokens that give the judgement."""

    yes_token: Annotated[str, MinLen(1)] = "1"  # noqa: S105
    no_token: Annotated[str, MinLen(1)] = "0"  # noqa: S105
    input_format: Literal["qwen3", "mxbai"] = "mxbai"
    # The logit of yes − that of no, or the probability of yes among the two.
    score_mode: Literal["logit_diff", "log_softmax"] = "logit_diff"
    default_instruction: str = ""  # empty: that of the `input_format`


class LlmReranker(TextFamily):
    scores_pairs = True
    features = (INPUT_IDS,)
    options = RerankerOptions
    engines: ClassVar = {TORCH: ".adapter", REMOTE: ".remote"}
    takes_loras = True
    reference_adapters = ("qwen2_flash_cross_encoder:Qwen2FlashCrossEncoderAdapter",)


@dataclass(frozen=True, slots=True)
class Format:
    """The prompt around and between instruction, query and text, as a model was trained with it."""

    before: str
    instruction: str
    query: str
    text: str
    after: str
    default_instruction: str
    in_one: bool  # the prompt from the instruction to the text is tokenized as one string, as in training


FORMATS = {
    # Qwen3-Reranker: its model card.
    "qwen3": Format(
        before="<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
        'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
        instruction="<Instruct>: ",
        query="<Query>: ",
        text="<Document>: ",
        after="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        default_instruction="Given a web search query, retrieve relevant passages that answer the query",
        in_one=True,
    ),
    # mxbai-rerank-v2: the package mxbai-rerank.
    "mxbai": Format(
        before="<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n",
        instruction="instruction: ",
        query="query: ",
        text="document: ",
        after="\nYou are a search relevance expert who evaluates how well documents match search queries. For each "
        "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
        "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:<|im_end|>\n<|im_start|>assistant\n",
        default_instruction="",
        in_one=False,
    ),
}


class RerankerTokenizer(TextTokenizer):
    """Tokenizer of prompts. Truncates the end of the text if a prompt is too long, never the end of the prompt."""

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, files: TextFiles, form: Format, instruction: str, max_length: int
    ) -> None:
        super().__init__(tokenizer, files)
        self._format, self._longest = form, max_length
        self._instruction = instruction or form.default_instruction
        self._before, self._after = self._ids(form.before), self._ids(form.after)
        frame = len(self._before) + len(self._after)
        self._room = max_length - frame
        if self._room < 1:
            message = (
                f"max_sequence_length {max_length} leaves no room for query and text: the prompt has {frame} tokens"
            )
            raise LoadError(message, "unsupported")

    def question(self, query: str, instruction: str | None) -> Prompted[Any]:
        form = self._format
        told = self._instruction if instruction is None else instruction
        asked = f"{form.instruction}{told}\n" if told else ""
        whole = f"{asked}{form.query}{query}"
        return Prompted(lambda: self.shortened(whole, self._room), len(whole))

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        pairs = [(question, self._format.text + text) for question, text in framed]
        if self._format.in_one:
            asked = [self._ids(f"{question}\n{text}") for question, text in pairs]
        else:
            before = {question: self._question_ids(question) for question in {question for question, _ in pairs}}
            asked = [before[question] + self._ids(text) for question, text in pairs]
        cut = np.array([len(ids) > self._room for ids in asked])
        read = packed_ids([[*self._before, *ids[: self._room], *self._after] for ids in asked])
        return {**read, TRUNCATED.name: Ragged(cut)}

    def _question_ids(self, question: str) -> list[int]:
        # Some of the text must remain.
        return self._ids(question)[: int(0.75 * self._room)] + self._ids("\n")

    def _ids(self, text: str) -> list[int]:
        start = beginning(self._tokenizer, text, MUCH * self._longest)
        ids: list[int] = self._tokenizer.encode(start, add_special_tokens=False).ids
        return ids


def judgement_ids(options: RerankerOptions, files: TextFiles) -> list[int]:
    """Return the first token of no and that of yes."""
    tokenizer = read_tokenizer(files, 8)
    ids = []
    for word in (options.no_token, options.yes_token):
        found = tokenizer.encode(word, add_special_tokens=False).ids
        if not found:
            raise LoadError(f"the tokenizer makes no token of {word!r}; set yes_token and no_token", "unsupported")
        ids.append(int(found[0]))
    return ids


def load_processor(spec: ModelSpec, directory: Path) -> RerankerTokenizer:
    files, options = TextFiles.read(directory), RerankerOptions.of(spec)
    log_disagreements(files, spec.max_sequence_length)
    max_length = min(spec.max_sequence_length, files.max_sequence_length)
    tokenizer = read_tokenizer(files, max_length)
    tokenizer.no_truncation()
    form = FORMATS[options.input_format]
    return RerankerTokenizer(tokenizer, files, form, options.default_instruction, max_length)
