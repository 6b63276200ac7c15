"""Query and text → the question that a language model answers with yes or no, as packed token ids. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import tokenizers

from sie_triton.adapters.base import Text, Tokens
from sie_triton.adapters.tokenizer import TextTokenizer, packed_ids, read_tokenizer
from sie_triton.spec import ModelSpec
from sie_triton.weights.sentence_transformers import TextFiles

# The most of a question that its query may take, so that something of the text is left.
QUERY_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class Format:
    """What stands around and between instruction, query and text, as a family of models was trained with it.

    `in_one`: from the instruction to the text it is tokenized as one string, as that family does.
    """

    before: str
    instruction: str
    query: str
    text: str
    after: str
    default_instruction: str
    in_one: bool


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
    """Cuts the end of the text where a question would be too long, never what it ends with."""

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, files: TextFiles, form: Format, instruction: str, max_length: int
    ) -> None:
        super().__init__(tokenizer, files)
        self._format = form
        self._instruction = instruction or form.default_instruction
        self._before, self._after = self._ids(form.before), self._ids(form.after)
        self._room = max(1, max_length - len(self._before) - len(self._after))

    @classmethod
    def of(cls, spec: ModelSpec, directory: Path) -> "RerankerTokenizer":
        assert spec.reranker is not None
        files = TextFiles.read(directory)
        max_length = min(spec.max_sequence_length, files.max_sequence_length)
        tokenizer = read_tokenizer(files, max_length)
        tokenizer.no_truncation()
        form = FORMATS[spec.reranker.input_format]
        return cls(tokenizer, files, form, spec.reranker.instruction, max_length)

    def pairs(self, query: str, texts: Sequence[str], instruction: str) -> list[Text]:
        form, instruction = self._format, instruction or self._instruction
        asked = f"{form.instruction}{instruction}\n" if instruction else ""
        return [(f"{asked}{form.query}{query}\n", form.text + text) for text in texts]

    def encode(self, texts: Sequence[Text], *, is_query: bool = False) -> Tokens:
        queries: dict[str, list[int]] = {}
        items = []
        for query, text in cast(Sequence[tuple[str, str]], texts):
            if self._format.in_one:
                ids = self._ids(query + text)[: self._room]
            else:
                if query not in queries:
                    queries[query] = self._ids(query.removesuffix("\n"))[: int(QUERY_SHARE * self._room)] + self._ids(
                        "\n"
                    )
                ids = (queries[query] + self._ids(text))[: self._room]
            items.append([*self._before, *ids, *self._after])
        return packed_ids(items)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids
