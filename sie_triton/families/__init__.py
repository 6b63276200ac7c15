"""Model families, found through a lazy table: a family is one module, and one line here.

A family of somebody else's is named `my_package.my_module:MyFamily` in a model file; the entry points of FAMILIES_GROUP
let its recogniser be asked too. Nothing here imports torch; a family does, when its weights are first needed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from sie_triton.contract import ENCODE_OUTPUTS, Model
from sie_triton.engines import Engine, Overflow
from sie_triton.errors import CatalogError, LoadError, UnbuiltFamily
from sie_triton.extension import class_named
from sie_triton.families.base import Adapter, Family, Options, Recognised
from sie_triton.families.dims import check_dims
from sie_triton.families.planned import PLANNED
from sie_triton.inputs import Processor
from sie_triton.nearest import did_you_mean
from sie_triton.spec import ModelSpec

__all__ = [
    "FAMILIES",
    "Adapter",
    "Family",
    "Options",
    "Recognised",
    "families",
    "family",
    "family_of",
    "fitted",
    "load_adapter",
    "load_processor",
    "model_of",
]

# In the order in which they are asked whether a directory is theirs: the last takes what is left.
FAMILIES: Mapping[str, str] = {
    "bge_m3": "sie_triton.families.bge_m3:BgeM3",
    "gliner": "sie_triton.families.gliner:Gliner",
    "gliner_bi": "sie_triton.families.gliner_bi:GlinerBi",
    "gliner_library": "sie_triton.families.gliner_library:GlinerLibrary",
    "glirel": "sie_triton.families.glirel:Glirel",
    "gliclass": "sie_triton.families.gliclass:Gliclass",
    "gliner2": "sie_triton.families.gliner2:Gliner2",
    "clip": "sie_triton.families.clip:Clip",
    "siglip": "sie_triton.families.siglip:Siglip",
    "clap": "sie_triton.families.clap:Clap",
    "owlv2": "sie_triton.families.owlv2:Owlv2",
    "grounding_dino": "sie_triton.families.grounding_dino:GroundingDino",
    "colpali": "sie_triton.families.colpali:ColPali",
    "colqwen2": "sie_triton.families.colqwen2:ColQwen2",
    "qwen3_vl_embedding": "sie_triton.families.qwen3_vl_embedding:Qwen3VLEmbedding",
    "qwen3_vl_reranker": "sie_triton.families.qwen3_vl_reranker:Qwen3VLReranker",
    "florence2": "sie_triton.families.florence2:Florence2",
    "donut": "sie_triton.families.donut:Donut",
    "lighton_ocr": "sie_triton.families.lighton_ocr:LightOnOcr",
    "glm_ocr": "sie_triton.families.glm_ocr:GlmOcr",
    "paddleocr_vl": "sie_triton.families.paddleocr_vl:PaddleOcrVl",
    "multivector": "sie_triton.families.multivector:MultiVector",
    "llm_reranker": "sie_triton.families.llm_reranker:LlmReranker",
    "splade": "sie_triton.families.splade:Splade",
    "stablebridge_pruner": "sie_triton.families.stablebridge_pruner:StablebridgePruner",
    "nli_classification": "sie_triton.families.nli_classification:NliClassification",
    "sequence_classification": "sie_triton.families.sequence_classification:SequenceClassification",
    "cross_encoder": "sie_triton.families.cross_encoder:CrossEncoder",
    "docling": "sie_triton.families.docling:Docling",
    "sentence_transformer": "sie_triton.families.sentence_transformer:SentenceTransformer",
}

# Where SIE keeps its adapters; nothing of it is imported here.
SIE_PACKAGE = "sie_server."
SIE_PACKAGES = (SIE_PACKAGE, "sie_server_rust.")

# Of installed packages, whose families are asked before ours.
FAMILIES_GROUP = "sie_triton.families"


@cache
def family(name: str) -> Family:
    """One of FAMILIES, or `module:Class`; LoadError where there is no such thing."""
    if name not in FAMILIES and ":" not in name:
        raise LoadError(f"family {name}: {_unknown(name)}", "dependency")
    return class_named(FAMILIES.get(name, name), Family, f"family {name}")()  # type: ignore[type-abstract]


def families() -> Iterator[tuple[str, Family]]:
    """All that are installed, by the name a model file has for them, in the order in which they are asked."""
    names = [entry.value for entry in entry_points(group=FAMILIES_GROUP)]
    return ((name, family(name)) for name in (*names, *FAMILIES))


def family_of(adapter_path: str | None, source: str) -> str:
    """The family that an `adapter_path` names, in our words or SIE's; CatalogError lists the families otherwise.

    `source`: where it stands. UnbuiltFamily for one of PLANNED.
    """
    where = f"{source}: adapter_path: {adapter_path!r}"
    name = _in_our_words(adapter_path or "")
    for known in FAMILIES:
        if name == known or name in family(known).reference_adapters:
            return known
    for planned, kind in PLANNED.items():
        if name == planned or name in kind.reference_adapters:
            raise UnbuiltFamily(f"{where}: a model that {kind.does} ({planned}) is not served by this version")
    if (adapter_path or "").startswith(SIE_PACKAGES):
        raise UnbuiltFamily(f"{where} is not served by this version; its families are {', '.join(FAMILIES)}")
    if ":" in name:
        try:
            family(name)
        except LoadError as exc:
            raise CatalogError(f"{where}: {exc}") from exc
        return name
    raise CatalogError(f"{where} {_unknown(name)}")


def _unknown(name: str) -> str:
    """Second half of an error message about an unknown family name."""
    giving = [each for each in FAMILIES if name in (output.name for output in family(each).outputs)]
    meant = f"; {name} is an output, which {', '.join(giving)} give" if giving else did_you_mean(name, FAMILIES)
    known = ", ".join(FAMILIES)
    return f"is not a family this version serves; families are {known}, or module:Class of an installed package{meant}"


def _in_our_words(adapter_path: str) -> str:
    """SIE's files name a module in several ways, depending on their age.

    >>> _in_our_words("sie_server.adapters.clip.adapter:CLIPAdapter"), _in_our_words("splade")
    ('clip:CLIPAdapter', 'splade')
    """
    module, colon, name = adapter_path.removeprefix(f"{SIE_PACKAGE}adapters.").partition(":")
    return module.removesuffix(".adapter") + colon + name


def model_of(spec: ModelSpec) -> Model:
    """What its verbs know of it."""
    kind = family(spec.family)
    known = {**ENCODE_OUTPUTS, **{output.name: output for output in kind.outputs}}
    outputs = {name: known[name] for name in spec.dims}
    return Model(spec, kind.features, outputs, kind.parameters, kind.scores_pairs, kind.extraction, kind.takes_loras)


def fitted(spec: ModelSpec, directory: Path) -> ModelSpec:
    """With no longer items than the checkpoint in `directory` reads; LoadError where its files cannot be read."""
    longest = family(spec.family).longest(directory)
    return replace(spec, max_sequence_length=min(spec.max_sequence_length, longest))


def load_processor(spec: ModelSpec, directory: Path) -> Processor:
    """What makes features of elements; LoadError says what is wrong with its files."""
    return family(spec.family).processor(spec, directory)


def load_adapter(spec: ModelSpec, directory: Path, engine: Engine) -> Adapter:
    """Load the weights in `directory`; LoadError says what is wrong with them, or with what the model file says."""
    kind = family(spec.family)
    load = import_module(module).load if (module := kind.loaders.get(spec.engine)) else kind.load
    try:
        adapter: Adapter | None = load(spec, directory, engine)
    except Overflow:
        adapter = None
    if adapter is None:
        # Outside the handler: the exception holds on to the weights.
        engine.widen()
        engine.free_unused_memory()
        adapter = load(spec, directory, engine)
    if "encode" in spec.tasks:
        check_dims(model_of(spec), kind, adapter)
    return adapter
