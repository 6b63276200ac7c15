"""Qwen3-VL-Reranker: scores documents, each a text, an image or both, for a query, by the next token's logits.

instruction, query, document → a prompt → tokens, and patches → Qwen3-VL → logits of yes and no → score

The prompt is the authors', with which the model was trained. Images are limited to the size in their code.
"""

from dataclasses import dataclass
from pathlib import Path

from sie_triton.contract.tensors import INPUT_IDS, PIXELS, READ, Tensor
from sie_triton.models.families.base import Family, Options
from sie_triton.models.families.qwen3_vl_embedding import read

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
