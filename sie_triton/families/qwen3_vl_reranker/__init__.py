"""Qwen3-VL-Reranker: scores documents, each a text, an image or both, for a query, by the next token's logits.

instruction, query, document → a prompt → tokens, and patches → Qwen3-VL → logits of yes and no → score

The prompt is the authors', with which the model was trained. Images are limited to the size in their code.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sie_triton.contract.tensors import INPUT_IDS, PIXELS, READ, Tensor
from sie_triton.families.base import Adapter, Family, Options
from sie_triton.families.qwen3_vl_embedding import PAGE, plan_of, read
from sie_triton.spec import ModelSpec

if TYPE_CHECKING:
    from sie_triton.engines.torch.engine import TorchEngine
    from sie_triton.families.qwen3_vl_reranker.tokens import PairProcessor

PAIR_SIZES = Tensor(
    "pair_sizes", "INT32", (-1, 4), "[n, 4] height and width of the query's image and of the item's; 0: none", "", 0
)


@dataclass(frozen=True)
class Qwen3VLRerankerOptions(Options):
    """Options of Qwen3-VL-Reranker. `default_instruction` is for requests and profiles without an instruction."""

    default_instruction: str = ""


class Qwen3VLReranker(Family):
    """The family. It recognises no directory, since no file identifies it: a model file must name it."""

    inputs = ("text", "image")
    scores_pairs = True
    features = (READ, INPUT_IDS, PIXELS, PAIR_SIZES)
    options = Qwen3VLRerankerOptions
    takes_loras = True
    reference_adapters = ("qwen3_vl_reranker:Qwen3VLRerankerAdapter",)

    def longest(self, directory: Path) -> int:
        return read(directory).longest

    def processor(self, spec: ModelSpec, directory: Path) -> "PairProcessor":
        from sie_triton.families.qwen3_vl_reranker.tokens import PairProcessor
        from sie_triton.families.shared.pages.chat_reader import ChatReader

        files = read(directory)
        longest = min(spec.max_sequence_length, files.longest)
        reader = ChatReader(files, plan_of(files), longest, spec.runtime)
        return PairProcessor(reader, self.options_of(spec).default_instruction)

    def load(self, spec: ModelSpec, directory: Path, engine: "TorchEngine") -> Adapter:
        from sie_triton.families.qwen3_vl_reranker.adapter import load

        files = read(directory)
        return load(files, plan_of(files), self.processor(spec, directory).page(*PAGE), engine)
