"""LLM rerankers: a causal language model judges query and text by the probabilities of its next token."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import MinLen

from sie_triton.contract.spec import REMOTE, TORCH
from sie_triton.contract.tensors import INPUT_IDS
from sie_triton.models.families.base import Options, TextFamily


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
