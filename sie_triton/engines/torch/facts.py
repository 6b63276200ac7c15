"""Facts about a transformers model, read from its code, its weights and its configuration."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from sie_triton.errors import LoadError


def names_in(function: Callable[..., Any]) -> Sequence[str]:
    """Return the names of functions and attributes that the code of `function` uses."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return () if code is None else tuple(code.co_names)


def padding_position(model: torch.nn.Module) -> int:
    """Return the padding token of RoBERTa and similar models, which do not count it and begin after its number.

    -1 for models that count all tokens from 0. LoadError if the configuration names no padding token.
    """
    numbers = "create_position_ids_from_input_ids"  # by which embeddings number tokens by their ids
    kin: list[Any] = [module for module in model.modules() if numbers in names_in(type(module).forward)]
    padding: int | None = kin[0].padding_idx if kin else -1
    if padding is None:
        raise LoadError("config.json: pad_token_id is null; positions are numbered from it on", "corrupt")
    return padding


def num_positions(config: Any, padding: int, otherwise: int) -> int:
    """Maximum length of an item in tokens by the model's table of positions; `otherwise` if it has none.

    `padding` is the model's `padding_position`.
    """
    most = getattr(config.get_text_config(), "max_position_embeddings", None)
    return int(most) - (padding + 1) if most else otherwise


def num_weights(model: torch.nn.Module) -> int:
    """Return the number of weights outside embeddings, which about equals a token's multiplications."""
    tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    return max(1, sum(p.numel() for p in model.parameters()) - sum(table.weight.numel() for table in tables))


def num_token_types(model: torch.nn.Module) -> int:
    """Return the number of token types; 0 if the model has none."""
    tables: list[Any] = [module for name, module in model.named_modules() if name.endswith("token_type_embeddings")]
    return int(tables[0].weight.shape[0]) if tables else 0


def windows(config: Any) -> list[int]:
    """Return the attention windows that a model's configuration names, in tokens."""
    text = config.get_text_config()
    names = ("sliding_window", "local_attention", "attention_window", "attention_chunk_size")
    values = [value for name in names for value in _settings(text, name)]
    return [value for value in values if isinstance(value, int) and value]


def _settings(config: Any, name: str) -> list[Any]:
    """Return the values of a setting: one, or that of each layer where layers differ."""
    try:
        return [getattr(config, name, None)]
    except RuntimeError:  # transformers refuses to name one value for all layers
        return [getattr(layer, name, None) for layer in config.per_layer_config]
