"""Qwen3-VL-Reranker: scores documents, each a text, an image or both, for a query, by the next token's logits.

instruction, query, document → a prompt → tokens, and patches → Qwen3-VL → logits of yes and no → score

The prompt is the authors', with which the model was trained. Images are limited to the size in their code.
"""

from dataclasses import dataclass

from sie_triton.contract.tensors import INPUT_IDS, PIXELS, READ, Tensor
from sie_triton.models.families.base import Options
from sie_triton.models.families.qwen3_vl_embedding import Qwen3VLEmbedding
from sie_triton.models.families.shared.pages import VisionLanguageFamily

PAIR_SIZES = Tensor(
    "pair_sizes", "INT32", (-1, 4), "[n, 4] height and width of the query's image and of the item's; 0: none", "", 0
)


@dataclass(frozen=True)
class Qwen3VLRerankerOptions(Options):
    """Options of Qwen3-VL-Reranker. `default_instruction` is for requests and profiles without an instruction."""

    default_instruction: str = ""


class Qwen3VLReranker(VisionLanguageFamily):
    """The family. It recognises no directory, since no file identifies it: a model file must name it."""

    model_types = Qwen3VLEmbedding.model_types
    usual_longest = Qwen3VLEmbedding.usual_longest
    scores_pairs = True
    features = (READ, INPUT_IDS, PIXELS, PAIR_SIZES)
    options = Qwen3VLRerankerOptions
    takes_loras = True
    reference_adapters = ("qwen3_vl_reranker:Qwen3VLRerankerAdapter",)
