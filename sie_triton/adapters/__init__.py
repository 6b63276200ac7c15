"""Model families, found through a lazy table: a family is one module and one line here.

Nothing here imports torch; a family's module does, when its weights are first needed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import cast

from sie_triton.adapters.base import Adapter
from sie_triton.contract import INPUT_IDS, LENGTHS, PROMPT_TOKENS, Tensor
from sie_triton.errors import CatalogError
from sie_triton.measurements import Measurements
from sie_triton.spec import ModelSpec

__all__ = ["FAMILIES", "Adapter", "Family", "family_of", "load_adapter"]


@dataclass(frozen=True, slots=True)
class Family:
    """`features` is what preprocess sends to inference for this family."""

    module: str
    features: tuple[Tensor, ...] = (INPUT_IDS, LENGTHS, PROMPT_TOKENS)


FAMILIES = {"sentence_transformer": Family("sie_triton.adapters.sentence_transformer")}

# `adapter_path` of SIE's own model files, which its users bring, to our families.
REFERENCE_ADAPTERS = {
    "sentence_transformer:SentenceTransformerDenseAdapter": "sentence_transformer",
    "bert_flash:BertFlashAdapter": "sentence_transformer",
    "xlm_roberta_flash:XLMRobertaFlashAdapter": "sentence_transformer",
}


def family_of(adapter_path: str | None, model: str) -> str:
    """The family an `adapter_path` names; CatalogError lists the families otherwise."""
    name = (adapter_path or "").removeprefix("sie_server.adapters.")
    family = REFERENCE_ADAPTERS.get(name, name)
    if family not in FAMILIES:
        raise CatalogError(
            f"{model}: profiles.default.adapter_path: {adapter_path!r} is not a family this version serves; "
            f"families are {', '.join(FAMILIES)}"
        )
    return family


def load_adapter(spec: ModelSpec, directory: Path, device: str, measurements: Measurements) -> Adapter:
    """Load the weights in `directory`; LoadError says what is wrong with them."""
    module = import_module(FAMILIES[spec.family].module)
    load = cast(Callable[[ModelSpec, Path, str, Measurements], Adapter], module.load)
    return load(spec, directory, device, measurements)
