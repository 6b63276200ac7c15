"""Attention of models that run with transformers' own code: padded encoders, towers, and models that generate."""

import torch
from transformers import PreTrainedModel

from sie_triton.contract.spec import AUTO
from sie_triton.engines.torch.attention.kernels import possible
from sie_triton.errors import LoadError

# Attention backends that are transformers' too, and the attribute of a class of models that supports them.
SUPPORT = {"eager": "", "sdpa": "_supports_sdpa", "flash_attention_2": "_supports_flash_attn"}


def library_attention(model: PreTrainedModel, wanted: str = AUTO) -> str:
    """Return the name of transformers' attention implementation for `model`.

    "auto" is the one that transformers would choose. A backend that this machine cannot run is replaced by "auto".
    Raise LoadError if `model`, or a model within it, does not support `wanted`.
    """
    weights = next(model.parameters())
    if wanted == AUTO or possible(wanted, weights.device, weights.dtype) == AUTO:
        return "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"
    check_supported(model, wanted)
    return wanted


def check_supported(model: torch.nn.Module, wanted: str) -> None:
    """Raise LoadError if a transformers model within `model` does not support the attention backend `wanted`."""
    if wanted not in SUPPORT:
        raise refusal(wanted, model, "it computes rows of packed texts only")
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and not _supports(part, SUPPORT[wanted]):
            raise refusal(wanted, part, "transformers has no such attention for it")


def refusal(wanted: str, part: torch.nn.Module, reason: str) -> LoadError:
    return LoadError(
        f"SIE_ATTENTION_BACKEND={wanted} cannot be used for {type(part).__name__}, a part of this model: {reason}; "
        "use auto",
        "unsupported",
    )


def _supports(part: PreTrainedModel, attribute: str) -> bool:
    if not attribute:
        return True  # every model is loaded with eager attention
    return bool(getattr(part, attribute, False)) and part._can_set_attn_implementation()
