"""Reader of adapter_config.json, which PEFT saves with the weights of a LoRA adapter: ranks, scales and variants."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sie_triton.checkpoints.contents import ADAPTER, check_safetensors
from sie_triton.checkpoints.files import Fields, has_file, read_fields, shortened
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.errors import LoadError

WEIGHTS, PICKLE = "adapter_model.safetensors", "adapter_model.bin"

# PEFT settings that change the result and are not supported.
UNSERVED = (
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
    "use_qalora",
    "use_bdlora",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
    "megatron_config",
    "ensure_weight_tying",
)

# Patterns are matched against module names: they must consist of these characters, with few repetitions, so that
# matching ends soon.
PATTERN = re.compile(r"[\w.^$|\\\[\]*-]{1,255}")

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class LoraFiles:
    """Files of a LoRA adapter. `ranks` and `alphas` map patterns of module names to values of their own."""

    directory: Path
    base: str
    rank: int
    alpha: float
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    is_rank_stabilised: bool
    is_dora: bool
    has_bias: bool
    saved_modules: tuple[str, ...]

    @classmethod
    def read(cls, directory: Path) -> "LoraFiles":
        """Read the files; raise LoadError naming the file and setting that cannot be used, and what to do."""
        config = read_fields(directory / ADAPTER)
        _check_served(config)
        if not has_file(directory / WEIGHTS) and has_file(directory / PICKLE):
            message = (
                "is a pickle, which can carry code; save the adapter with save_pretrained(safe_serialization=True)"
            )
            raise LoadError(f"{directory / PICKLE}: {message}", "unsupported")
        check_safetensors(directory / WEIGHTS)
        return cls(
            directory=directory,
            base=config.text("base_model_name_or_path", ""),
            rank=_rank(config, "r", 8),
            alpha=config.number("lora_alpha", 8),
            ranks=_by_pattern(config.fields("rank_pattern"), _rank),
            alphas=_by_pattern(config.fields("alpha_pattern"), Fields.number),
            is_rank_stabilised=config.flag("use_rslora", False),
            is_dora=config.flag("use_dora", False),
            has_bias=config.flag("lora_bias", False),
            saved_modules=config.texts("modules_to_save"),
        )

    def rank_of(self, module: str) -> int:
        """Return the rank for the module of that name in the trained model."""
        return self.ranks.get(_matching(tuple(self.ranks), module), self.rank)

    def scale_of(self, module: str) -> float:
        """Return the factor of the product: alpha / rank; rank-stabilised (Kalajdzievski, 2023) alpha / √rank."""
        alpha, rank = self.alphas.get(_matching(tuple(self.alphas), module), self.alpha), self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilised else rank)


def _check_served(config: Fields) -> None:
    kind = config.text("peft_type", "LORA")
    if kind != "LORA":
        message = (
            f"peft_type {shortened(kind)} cannot be served; supported is LORA, with or without use_dora or use_rslora"
        )
        raise config.unserved(message)
    if (bias := config.text("bias", "none")) != "none":
        message = f"bias {shortened(bias)} changes the biases of the base; train with bias none, or merge the adapter"
        raise config.unserved(f"{message} into its base and serve that")
    for name in UNSERVED:
        if config.values.get(name):
            message = f"{name} cannot be served; train without it, or merge the adapter into its base and serve that"
            raise config.unserved(message)
    start, changing = config.values.get("init_lora_weights"), ("pissa", "olora", "corda", "loftq", "lora_ga", "mica")
    if isinstance(start, str) and start.lower().startswith(changing):
        message = (
            f"init_lora_weights {shortened(start)} also changes the weights of the base; save the adapter as plain LoRA"
        )
        raise config.unserved(f"{message}: save_pretrained(path_initial_model_for_weight_conversion=…)")


def _rank(fields: Fields, key: str, default: int | None = None) -> int:
    return fields.integer(key, default, least=1, most=65_536)


def _by_pattern(fields: Fields, read: Callable[[Fields, str], N]) -> dict[str, N]:
    if len(fields.values) > LIMITS.max_lora_patterns:
        message = f"has {len(fields.values)} patterns; at most {LIMITS.max_lora_patterns} are read"
        raise fields.unserved(message)
    return {_pattern(fields, name): read(fields, name) for name in fields.values}


def _pattern(fields: Fields, pattern: str) -> str:
    try:
        if not PATTERN.fullmatch(pattern) or pattern.count("*") > LIMITS.max_lora_repetitions:
            raise re.error("not allowed")
        re.compile(pattern)
    except re.error as exc:
        most = LIMITS.max_lora_repetitions
        allowed = f"a module's name, or a pattern of letters, digits and ^ $ . | [ ] with at most {most} *"
        raise fields.unserved(f"{shortened(pattern)}: must be {allowed}") from exc
    return pattern


def _matching(patterns: tuple[str, ...], name: str) -> str:
    """Return the first pattern that matches `name` or the end of it, as in PEFT; empty if none does."""
    return next((each for each in patterns if re.match(rf"(?:.*\.)?(?:{each})$", name)), "")
