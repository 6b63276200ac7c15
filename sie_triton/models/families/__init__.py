"""Model families, in a lazy table: a family is one folder, and one line here.

A model file names a family of another package as `my_package.my_module:MyFamily`. The package must declare it as an
entry point of the group FAMILIES_GROUP: model files come from outside, and must not choose what is imported. Importing
this module does not import torch; a family imports torch when its weights are first needed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path

from sie_triton.checkpoints.contents import check_headers
from sie_triton.contract import ENCODE_OUTPUTS, Extraction, Model
from sie_triton.contract.did_you_mean import did_you_mean
from sie_triton.contract.extension import class_named
from sie_triton.contract.spec import ModelSpec
from sie_triton.engines import Engine, Overflow
from sie_triton.errors import CatalogError, LoadError, UnbuiltFamily
from sie_triton.models.families.answers import check_dims, difference, sampled
from sie_triton.models.families.base import Adapter, Family, Options, Recognised
from sie_triton.models.inputs import Processor

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

# In the order in which they are tried on a directory; the last one takes what no other family recognises.
FAMILIES: Mapping[str, str] = {
    "bge_m3": "sie_triton.models.families.bge_m3:BgeM3",
    "gliformer": "sie_triton.models.families.gliformer:Gliformer",
    "gliner": "sie_triton.models.families.gliner:Gliner",
    "gliner_bi": "sie_triton.models.families.gliner_bi:GlinerBi",
    "gliner_library": "sie_triton.models.families.gliner_library:GlinerLibrary",
    "glirel": "sie_triton.models.families.glirel:Glirel",
    "gliclass": "sie_triton.models.families.gliclass:Gliclass",
    "gliner2": "sie_triton.models.families.gliner2:Gliner2",
    "gliner2_library": "sie_triton.models.families.gliner2_library:Gliner2Library",
    "gliner2_decide": "sie_triton.models.families.gliner2_decide:Gliner2Decide",
    "clip": "sie_triton.models.families.clip:Clip",
    "siglip": "sie_triton.models.families.siglip:Siglip",
    "clap": "sie_triton.models.families.clap:Clap",
    "whisper": "sie_triton.models.families.whisper:Whisper",
    "owlv2": "sie_triton.models.families.owlv2:Owlv2",
    "grounding_dino": "sie_triton.models.families.grounding_dino:GroundingDino",
    "colpali": "sie_triton.models.families.colpali:ColPali",
    "colsmol": "sie_triton.models.families.colsmol:ColSmol",
    "colqwen2": "sie_triton.models.families.colqwen2:ColQwen2",
    "colqwen3": "sie_triton.models.families.colqwen3:ColQwen3",
    "nemo_colembed": "sie_triton.models.families.nemo_colembed:NemoColEmbed",
    "qwen3_vl_embedding": "sie_triton.models.families.qwen3_vl_embedding:Qwen3VLEmbedding",
    "qwen3_vl_reranker": "sie_triton.models.families.qwen3_vl_reranker:Qwen3VLReranker",
    "florence2": "sie_triton.models.families.florence2:Florence2",
    "donut": "sie_triton.models.families.donut:Donut",
    "lighton_ocr": "sie_triton.models.families.lighton_ocr:LightOnOcr",
    "glm_ocr": "sie_triton.models.families.glm_ocr:GlmOcr",
    "paddleocr_vl": "sie_triton.models.families.paddleocr_vl:PaddleOcrVl",
    "multivector": "sie_triton.models.families.multivector:MultiVector",
    "causal_cross_encoder": "sie_triton.models.families.causal_cross_encoder:CausalCrossEncoder",
    "llm_reranker": "sie_triton.models.families.llm_reranker:LlmReranker",
    "splade": "sie_triton.models.families.splade:Splade",
    "stablebridge_pruner": "sie_triton.models.families.stablebridge_pruner:StablebridgePruner",
    "nli_classification": "sie_triton.models.families.nli_classification:NliClassification",
    "token_classification": "sie_triton.models.families.token_classification:TokenClassification",
    "sequence_classification": "sie_triton.models.families.sequence_classification:SequenceClassification",
    "cross_encoder": "sie_triton.models.families.cross_encoder:CrossEncoder",
    "docling": "sie_triton.models.families.docling:Docling",
    "static_embedding": "sie_triton.models.families.static_embedding:StaticEmbedding",
    "sentence_transformer": "sie_triton.models.families.sentence_transformer:SentenceTransformer",
}

# SIE's adapters that have no family here → a family that does the like.
NOT_SERVED: Mapping[str, str] = {
    "gliner2.classification:GLiNER2ClassificationAdapter": "gliner2_decide serves it if requests send the labels",
    "gliner_union:GLiNERUnionAdapter": "gliner serves each of its models",
    "laya:LayaAdapter": "gliner2_decide answers questions by labels",
    "lighton_ocr:LightOnOCR3Adapter": "lighton_ocr serves version 2",
    "mineru_vl:MinerUVLAdapter": "lighton_ocr, glm_ocr and paddleocr_vl read pages",
    "parakeet:ParakeetTDTAdapter": "whisper transcribes speech",
    "sam3:Sam3Adapter": "owlv2 and grounding_dino find objects by labels",
    "st_sparse_vision:SparseEncoderVisionAdapter": "code of a repository is never run; splade encodes texts",
    "topk_embed:TopkEmbedAdapter": "multivector encodes texts, colqwen3 pages",
}

# The packages of SIE's adapters. Nothing is imported from them.
SIE_PACKAGES = ("sie_server.", "sie_server_rust.")

# Entry points by which installed packages declare families, which are tried before ours.
FAMILIES_GROUP = "sie_triton.families"


@cache
def family(name: str) -> Family:
    """Return one of FAMILIES, or one that an installed package declares; raise LoadError if it does not exist."""
    if name not in FAMILIES and name not in declared():
        raise LoadError(f"family {name}: {_unknown(name)}", "dependency")
    return class_named(FAMILIES.get(name, name), Family, f"family {name}")()


def families() -> Iterator[tuple[str, Family]]:
    """Yield all installed families, by their names in model files, in the order in which they are tried."""
    return ((name, family(name)) for name in (*declared(), *FAMILIES))


def declared() -> list[str]:
    """Return the families that installed packages declare, as `module:Class`."""
    return [entry.value for entry in entry_points(group=FAMILIES_GROUP)]


def family_of(adapter_path: str | None, source: str) -> str:
    """Return the family that an `adapter_path` of ours or of SIE's names; raise CatalogError listing the families.

    `source` is the model file, for the message. Raises UnbuiltFamily for adapters of SIE that are not served.
    """
    where = f"{source}: adapter_path: {adapter_path!r}"
    name = _in_our_words(adapter_path or "")
    for known in FAMILIES:
        if name == known or name in family(known).reference_adapters:
            return known
    if (adapter_path or "").startswith(SIE_PACKAGES):
        instead = NOT_SERVED.get(name, f"its families are {', '.join(FAMILIES)}")
        raise UnbuiltFamily(f"{where} is not served by this version; {instead}")
    if name not in declared():
        raise CatalogError(f"{where} {_unknown(name)}")
    try:
        family(name)
    except LoadError as exc:
        raise CatalogError(f"{where}: {exc}") from exc
    return name


def _unknown(name: str) -> str:
    """Return the end of an error message about an unknown family name."""
    others = f"an entry point of {FAMILIES_GROUP}"
    if ":" in name:
        return f"is no family: no installed package declares it as {others}"
    giving = [each for each in FAMILIES if name in (output.name for output in family(each).outputs)]
    meant = f"; {name} is an output of {', '.join(giving)}" if giving else did_you_mean(name, FAMILIES)
    known = f"{', '.join(FAMILIES)}, or module:Class that an installed package declares as {others}"
    return f"is not a family this version serves; families are {known}{meant}"


def _in_our_words(adapter_path: str) -> str:
    """Return the name of SIE's adapter in one form; SIE's model files use several, depending on their age.

    >>> _in_our_words("sie_server.adapters.clip.adapter:CLIPAdapter"), _in_our_words("splade")
    ('clip:CLIPAdapter', 'splade')
    """
    for package in SIE_PACKAGES:
        adapter_path = adapter_path.removeprefix(f"{package}adapters.")
    module, colon, name = adapter_path.partition(":")
    return module.removesuffix(".adapter") + colon + name


def model_of(spec: ModelSpec) -> Model:
    """Return the description of a model that verbs read."""
    kind = family(spec.family)
    known = {**ENCODE_OUTPUTS, **{output.name: output for output in kind.outputs}}
    outputs = {name: known[name] for name in spec.dims}
    return Model(
        spec,
        kind.features,
        outputs,
        kind.parameters,
        kind.scores_pairs,
        kind.extraction or Extraction(),
        kind.takes_loras,
    )


def fitted(spec: ModelSpec, directory: Path) -> ModelSpec:
    """Return `spec` limited to the checkpoint's maximum length; raise LoadError if its files cannot be read."""
    longest = family(spec.family).longest(directory)
    return replace(spec, max_sequence_length=min(spec.max_sequence_length, longest))


def load_processor(spec: ModelSpec, directory: Path) -> Processor:
    """Load the processor, which makes features of elements; raise LoadError saying what is wrong with its files."""
    return family(spec.family).processor(spec, directory)


def load_adapter(spec: ModelSpec, directory: Path, engine: Engine) -> Adapter:
    """Load the weights in `directory`; raise LoadError saying what is wrong with them or with the model file."""
    kind = family(spec.family)
    check_headers(directory)
    try:
        adapter: Adapter | None = kind.load(spec, directory, engine)
    except Overflow:
        adapter = None
    if adapter is None:
        # Outside the handler: the exception holds on to the weights.
        engine.widen()
        engine.free_unused_memory()
        adapter = kind.load(spec, directory, engine)
    model = model_of(spec)
    batch = partial(sampled, model, kind, adapter)
    if saved := engine.round_weights(lambda: adapter.forward(batch()), partial(difference, model)):
        adapter.weights_bytes -= saved
    if "encode" in spec.tasks:
        check_dims(model, kind, adapter)
    return adapter
