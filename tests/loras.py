"""LoRA adapters with fixed-seed weights, as peft saves them, and peft's own forward pass beside."""

import copy
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model


def save_lora(directory: Path, model: torch.nn.Module, seed: int = 1, spread: float = 0.3, **config: Any) -> PeftModel:
    """An adapter of `model`, which stays as it is, in `directory`; `config` as LoraConfig takes it.

    What it adds is about `spread` of what it is added to.
    """
    torch.manual_seed(seed)
    settings = LoraConfig(**{"r": 4, "lora_alpha": 8, "init_lora_weights": False, "lora_dropout": 0.0, **config})
    adapted = get_peft_model(copy.deepcopy(model), settings)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_magnitude" in name:
                parameter *= 1 + spread * torch.rand_like(parameter)
            elif "lora_" in name:
                parameter.normal_(std=spread)
            elif "modules_to_save" in name:
                parameter += spread * parameter.std() * torch.randn_like(parameter)
    adapted.eval().save_pretrained(directory)
    return adapted


def cosines(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The smallest of rows."""
    return float(torch.nn.functional.cosine_similarity(torch.as_tensor(ours), torch.as_tensor(theirs)).min())
