"""LoRA adapters with fixed-seed weights, as peft saves them, and peft's own forward pass as the reference."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from tests.support.items import Served

LEAST_COSINE = 0.99999


def save_lora(directory: Path, model: torch.nn.Module, seed: int = 1, spread: float = 0.3, **config: Any) -> PeftModel:
    """An adapter of `model`, which stays as it is, in `directory`; `config` as LoraConfig takes it.

    The larger `spread`, the more it changes.
    """
    torch.manual_seed(seed)
    settings = LoraConfig(**{"r": 4, "lora_alpha": 8, "init_lora_weights": False, **config})
    adapted = get_peft_model(copy.deepcopy(model), settings)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_magnitude" in name:
                parameter *= 1 + spread * torch.rand_like(parameter)
            elif "lora_" in name:
                parameter.normal_(std=spread)
            elif "modules_to_save" in name:
                parameter += spread * torch.randn_like(parameter)
    adapted.eval().save_pretrained(directory)
    return adapted


def draw_biases(directory: Path) -> Path:
    """Draw random biases for the model: they are all 0 at first, so that one could stand in for another."""
    weights = load_file(directory / "model.safetensors")
    torch.manual_seed(4)
    drawn = {name: 0.3 * torch.randn_like(each) for name, each in weights.items() if name.endswith("bias")}
    save_file({**weights, **drawn}, directory / "model.safetensors", {"format": "pt"})
    return directory


class Encoding:
    """A dense model in `directory`: ours with adapters, and peft's over the same weights."""

    def __init__(self, directory: Path, **changes: Any) -> None:
        usual = {"inputs": ("text",), "max_sequence_length": 512, "dims": {"dense": 64}}
        self.ours = Served("sentence_transformer", directory, **{**usual, **changes})
        self.encoder = self.ours.adapter.encoder
        self.library = SentenceTransformer(str(directory), device="cpu")
        self._base = self.library[0].model

    def add(self, name: str, directory: Path, **config: Any) -> PeftModel:
        adapted = save_lora(directory, self._base, **config)
        self.encoder.add_lora(name, directory)
        return adapted

    def __call__(self, texts: list[str], loras: list[str] | str = "") -> np.ndarray:
        """Vectors [texts, 64], all in one batch; each text by the adapter at its index."""
        with self.encoder.adapted([loras] * len(texts) if isinstance(loras, str) else loras):
            return self.ours.encode(texts)["dense"]

    def by_peft(self, texts: list[str], adapted: PeftModel) -> np.ndarray:
        self.library[0].model = adapted
        return self.library.encode(texts)


def least_cosine(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Least cosine similarity over all rows."""
    products = (ours * theirs).sum(-1)
    return float((products / np.linalg.norm(ours, axis=-1) / np.linalg.norm(theirs, axis=-1)).min())
