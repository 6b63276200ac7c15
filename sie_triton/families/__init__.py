"""Model families, found through a lazy table: a family is one module and one line here.

Nothing here imports torch; a family's module does, when its weights are first needed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sie_triton.contract import INPUT_IDS, LENGTHS, PROMPT_TOKENS, QUERY_IDS, TOKEN_TYPE_IDS, Tensor
from sie_triton.errors import CatalogError
from sie_triton.families.base import Adapter
from sie_triton.families.dims import check_dims
from sie_triton.measurements import Measurements
from sie_triton.spec import ModelSpec

if TYPE_CHECKING:
    from sie_triton.inputs.tokenizer import TextTokenizer

__all__ = ["FAMILIES", "Adapter", "Family", "family_of", "features", "load_adapter", "load_tokenizer"]


@dataclass(frozen=True, slots=True)
class Family:
    """`outputs` are the output types of encode it has; `features` is what preprocess sends to inference.

    `score_modes` are ways to score by its outputs, the default first; `scores_pairs` if query and text go through the
    model together. `loadtime` are options of a model file that it alone, or with a few others, has.
    """

    module: str
    outputs: tuple[str, ...] = ()
    score_modes: tuple[str, ...] = ()
    scores_pairs: bool = False
    loadtime: tuple[str, ...] = ()
    tokenizer: str = "sie_triton.inputs.tokenizer:TextTokenizer"
    features: tuple[Tensor, ...] = (INPUT_IDS, LENGTHS, PROMPT_TOKENS)

    @property
    def tasks(self) -> tuple[str, ...]:
        """What can be asked of it, as in a model file."""
        return (*(f"encode.{name}" for name in self.outputs), *(["score"] if self.can_score else []))

    @property
    def can_score(self) -> bool:
        return self.scores_pairs or bool(self.score_modes)


FAMILIES = {
    "sentence_transformer": Family("sie_triton.families.sentence_transformer", ("dense",)),
    "splade": Family("sie_triton.families.splade", ("sparse",)),
    "multivector": Family(
        "sie_triton.families.multivector",
        ("multivector",),
        ("maxsim",),
        loadtime=("muvera_config",),
        tokenizer="sie_triton.families.multivector_tokenizer:MultiVectorTokenizer",
    ),
    "cross_encoder": Family(
        "sie_triton.families.cross_encoder",
        scores_pairs=True,
        tokenizer="sie_triton.families.pair_tokenizer:PairTokenizer",
        features=(INPUT_IDS, TOKEN_TYPE_IDS, LENGTHS),
    ),
    "llm_reranker": Family(
        "sie_triton.families.llm_reranker",
        scores_pairs=True,
        loadtime=("yes_token", "no_token", "input_format", "score_mode", "default_instruction"),
        tokenizer="sie_triton.families.reranker_tokenizer:RerankerTokenizer",
        features=(INPUT_IDS, LENGTHS),
    ),
    "bge_m3": Family(
        "sie_triton.families.bge_m3",
        ("dense", "sparse", "multivector"),
        ("dense", "sparse", "colbert", "hybrid"),
        loadtime=("muvera_config",),
    ),
}

# `adapter_path` of SIE's own model files, which its users bring, to our families.
REFERENCE_ADAPTERS = {
    "sentence_transformer:SentenceTransformerDenseAdapter": "sentence_transformer",
    "bert_flash:BertFlashAdapter": "sentence_transformer",
    "xlm_roberta_flash:XLMRobertaFlashAdapter": "sentence_transformer",
    "splade_flash:SPLADEFlashAdapter": "splade",
    "gte_sparse_flash:GTESparseFlashAdapter": "splade",
    "colbert:ColBERTAdapter": "multivector",
    "colbert_modernbert_flash:ColBERTModernBERTFlashAdapter": "multivector",
    "colbert_rotary_flash:ColBERTRotaryFlashAdapter": "multivector",
    "cross_encoder:CrossEncoderAdapter": "cross_encoder",
    "bert_flash_cross_encoder:BertFlashCrossEncoderAdapter": "cross_encoder",
    "modernbert_flash_cross_encoder:ModernBertFlashCrossEncoderAdapter": "cross_encoder",
    "jina_flash_cross_encoder:JinaFlashCrossEncoderAdapter": "cross_encoder",
    "qwen2_flash_cross_encoder:Qwen2FlashCrossEncoderAdapter": "llm_reranker",
    "bge_m3:BGEM3Adapter": "bge_m3",
    "bge_m3_flash:BGEM3FlashAdapter": "bge_m3",
}


def features(spec: ModelSpec) -> tuple[Tensor, ...]:
    """What preprocess sends to inference."""
    by_query = "score" in spec.tasks and not spec.scores_pairs
    return (*FAMILIES[spec.family].features, *([QUERY_IDS] if by_query else []))


def family_of(adapter_path: str | None, source: str) -> str:
    """The family an `adapter_path` names; CatalogError lists the families otherwise. `source`: where it stands."""
    # Its files name a module in one of two ways, depending on their age.
    name = (adapter_path or "").removeprefix("sie_server.adapters.").replace(".adapter:", ":")
    family = REFERENCE_ADAPTERS.get(name, name)
    if family not in FAMILIES:
        raise CatalogError(
            f"{source}: profiles.default.adapter_path: {adapter_path!r} is not a family this version serves; "
            f"families are {', '.join(FAMILIES)}"
        )
    return family


def load_tokenizer(spec: ModelSpec, directory: Path) -> "TextTokenizer":
    """The tokenizer of the family; LoadError says what is wrong with its files."""
    module, _, name = FAMILIES[spec.family].tokenizer.partition(":")
    kind = cast(type["TextTokenizer"], getattr(import_module(module), name))
    return kind.of(spec, directory)


def load_adapter(spec: ModelSpec, directory: Path, device: str, measurements: Measurements) -> Adapter:
    """Load the weights in `directory`; LoadError says what is wrong with them, or with what the model file says."""
    module = import_module(FAMILIES[spec.family].module)
    load = cast(Callable[[ModelSpec, Path, str, Measurements], Adapter], module.load)
    adapter = load(spec, directory, device, measurements)
    check_dims(spec, adapter)
    return adapter
