"""Model files as SIE writes them: one for each adapter that its own files name, with the options they have there."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

ADAPTERS = "sie_server.adapters."
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
ASKED = "Instruct: {instruction}\nQuery: {text}"
MUVERA = {"num_repetitions": 40, "num_simhash_projections": 6, "projection_dim": 8, "final_projection_dim": None}
COLBERT = {
    "muvera_config": MUVERA,
    "normalize": True,
    "query_max_length": 32,
    "skip_special_tokens": False,
    "query_prefix": "[Q] ",
    "doc_prefix": "[D] ",
}
AS_FDE = {"muvera": {}, "output_types": ["dense"], "output_similarity": {"dense": "dot"}}

DENSE, SPARSE, MULTIVECTOR = ({"encode": {name: {"dim": 96}}} for name in ("dense", "sparse", "multivector"))
SCORE, EXTRACT = {"score": {}}, {"extract": {}}
PAGES = {**MULTIVECTOR, **SCORE}


def file(adapter: str, tasks: Any, runtime: Any = None, loadtime: Any = None, **more: Any) -> dict[str, Any]:
    """`more`: `image`, `document`; `length`; `precision`; `profiles`, name → what differs from the default."""
    profile = {
        "max_batch_tokens": 16384,
        "compute_precision": more.get("precision", "bfloat16"),
        "adapter_path": ADAPTERS + adapter,
        "adapter_options": {"loadtime": loadtime or {}, "runtime": runtime or {}},
    }
    kinds = ("text", "image", "audio", "video", "document")
    inputs = {kind: bool(more.get(kind, kind == "text")) for kind in kinds}
    encode = {"dense": None, "sparse": None, "multivector": None, **tasks.get("encode", {})}
    others = {name: {"extends": "default", **given} for name, given in more.get("profiles", {}).items()}
    return {
        "inputs": inputs if inputs["document"] else {kind: inputs[kind] for kind in kinds[:-1]},
        "tasks": {
            "encode": encode if "encode" in tasks else None,
            "score": tasks.get("score"),
            "extract": tasks.get("extract"),
        },
        **({"max_sequence_length": more["length"]} if "length" in more else {}),
        "profiles": {"default": profile, **others},
    }


def runtime(**options: Any) -> dict[str, Any]:
    """Return the runtime options of a profile."""
    return {"adapter_options": {"runtime": options}}


BOTH = {"image": True}
SEEN = {"text": False, "image": True}

ENTITIES_OF_GLINER2 = file(
    "gliner2.entities:GLiNER2EntitiesAdapter", EXTRACT, {}, {"max_prompt_tokens": 2048}, length=4096
)

SERVED: dict[str, dict[str, Any]] = {
    "st": file("sentence_transformer:SentenceTransformerDenseAdapter", DENSE, {"normalize": True}, length=512),
    "st-of-old": file("sentence_transformer.adapter:SentenceTransformerDenseAdapter", DENSE, length=512),
    "bert": file(
        "bert_flash:BertFlashAdapter",
        DENSE,
        {"pooling": "mean", "normalize": True, "query_template": "query: {text}", "doc_template": "passage: {text}"},
        length=512,
        precision=None,
    ),
    "xlm": file(
        "xlm_roberta_flash:XLMRobertaFlashAdapter",
        DENSE,
        {"pooling": "mean", "normalize": True, "query_template": ASKED, "default_instruction": INSTRUCTION},
        length=512,
    ),
    "modernbert": file("modernbert_flash:ModernBERTFlashAdapter", DENSE, {"pooling": "cls", "normalize": True}),
    "rope": file(
        "rope_flash:RoPEFlashAdapter",
        DENSE,
        {"pooling": "cls", "normalize": True},
        {"trust_remote_code": True, "config_kwargs": {"unpad_inputs": False, "use_memory_efficient_attention": False}},
        length=8192,
        profiles={"candle": {"adapter_path": "sie_server_rust.adapters.candle:CandleEmbeddingAdapter"}},
    ),
    "nomic": file("nomic_flash:NomicFlashAdapter", DENSE, {"pooling": "mean"}, {"trust_remote_code": True}),
    "qwen2": file(
        "qwen2_flash:Qwen2FlashAdapter",
        DENSE,
        {"pooling": "mean", "normalize": True, "query_template": ASKED.replace("{instruction}", INSTRUCTION)},
        {
            "trust_remote_code": True,
            "uses_legacy_transformers_cache": True,
            "dense_projection_path": "2_Dense_1024",
            "dense_dim": 96,
            "config_kwargs": {"use_cache": False},
            "causal": True,
        },
        length=512,
    ),
    "gritlm": file(
        "pytorch_embedding:PyTorchEmbeddingAdapter",
        DENSE,
        {"pooling": "mean", "normalize": True, "query_template": ASKED, "default_instruction": INSTRUCTION},
        {"attn_implementation": "sdpa", "forward_kwargs": {"is_causal": False}},
        length=4096,
    ),
    "sglang": file(
        "sglang:SGLangEmbeddingAdapter",
        DENSE,
        {"pooling": "last_token", "normalize": True, "query_template": ASKED, "default_instruction": INSTRUCTION},
        {"mem_fraction_static": 0.85},
        length=32768,
    ),
    "sglang-of-today": file(
        "sglang.embedding:SGLangEmbeddingAdapter", DENSE, {"pooling": "last"}, {"append_eos": True}, length=32768
    ),
    "bge-m3": file(
        "bge_m3_flash:BGEM3FlashAdapter",
        {"encode": {"dense": {"dim": 1024}, "sparse": {"dim": 250002}, "multivector": {"dim": 1024}}, **SCORE},
        {"pooling": "cls", "normalize": True},
        length=8192,
        profiles={
            "sparse": runtime(pooling="cls", normalize=True, output_types=["sparse"]),
            "banking": runtime(pooling="cls", normalize=True, lora_id="org/bge-m3-lora", instruction="Classify"),
            "flag": {
                "extends": None,
                "compute_precision": None,
                "adapter_path": f"{ADAPTERS}bge_m3_flag:BGEM3FlagAdapter",
                "adapter_options": {"loadtime": {}, "runtime": {"normalize": True}},
            },
        },
    ),
    "splade": file("splade_flash:SPLADEFlashAdapter", SPARSE, length=512, precision="float16"),
    "sparse-encoder": file(
        "sentence_transformer:SentenceTransformerSparseAdapter", SPARSE, {}, {"max_seq_length": 128}, length=512
    ),
    "gte-sparse": file("gte_sparse_flash:GTESparseFlashAdapter", SPARSE, {}, {"trust_remote_code": True}, length=8192),
    "colbert": file(
        "colbert:ColBERTAdapter",
        PAGES,
        {"muvera": None, "query_max_length": 32},
        {**COLBERT, "token_dim": 96, "query_expansion": False, "doc_punctuation_skiplist": True},
        length=512,
        profiles={"muvera": runtime(query_max_length=32, **AS_FDE)},
    ),
    "colbert-modernbert": file(
        "colbert_modernbert_flash:ColBERTModernBERTFlashAdapter",
        PAGES,
        {"muvera": None},
        {**COLBERT, "token_dim": 96, "doc_max_length": 256},
        length=299,
        profiles={"muvera": runtime(**AS_FDE)},
    ),
    "colbert-rotary": file(
        "colbert_rotary_flash:ColBERTRotaryFlashAdapter",
        PAGES,
        {"query_max_length": 32, "max_seq_length": 300, "muvera": None},
        {**COLBERT, "code_revision": "845308d0", "query_prefix": "[QueryMarker]", "doc_prefix": "[DocumentMarker]"},
        length=8192,
        profiles={"muvera": runtime(query_max_length=32, max_seq_length=300, **AS_FDE)},
    ),
    "reranker": file("bert_flash_cross_encoder:BertFlashCrossEncoderAdapter", SCORE, length=512, precision=None),
    "reranker-modernbert": file("modernbert_flash_cross_encoder:ModernBertFlashCrossEncoderAdapter", SCORE),
    "reranker-jina": file(
        "jina_flash_cross_encoder:JinaFlashCrossEncoderAdapter", SCORE, {}, {"trust_remote_code": True}, length=1024
    ),
    "reranker-qwen3": file(
        "qwen2_flash_cross_encoder:Qwen2FlashCrossEncoderAdapter",
        SCORE,
        {},
        {
            "yes_token": "yes",
            "no_token": "no",
            "input_format": "qwen3",
            "score_mode": "log_softmax",
            "default_instruction": INSTRUCTION,
        },
        length=32768,
    ),
    "reranker-zerank": file("native_causal_cross_encoder.adapter:NativeCausalCrossEncoderAdapter", SCORE, length=32768),
    "gliner": file("gliner:GLiNERAdapter", EXTRACT, {"threshold": 0.5, "merge_adjacent_entities": True}),
    "gliclass": file(
        "gliclass:GLiClassAdapter", EXTRACT, {"multi_label": True}, {"classification_type": "single-label"}
    ),
    "pruner": file(
        "stablebridge_pruner:StablebridgePrunerAdapter",
        EXTRACT,
        {"prune_threshold": 0.3, "highlight_threshold": 0.5},
        {"pruning_head_path": "head", "hidden_size": 768, "dropout": 0.1},
    ),
    "nli": file(
        "nli_classification_flash:NLIClassificationFlashAdapter",
        EXTRACT,
        {"hypothesis_template": "This text is about {}.", "multi_label": False},
    ),
    "gliner-bi": file("gliner_bi:GLiNERBiAdapter", EXTRACT, {"precompute_labels": True}),
    "glirel": file("glirel:GLiRELAdapter", EXTRACT, {"threshold": 0.5}),
    "gliner2": file("gliner2:GLiNER2Adapter", EXTRACT, {"threshold": 0.5}),
    "docling": file("docling:DoclingAdapter", EXTRACT, text=False, image=True, document=True, precision=None),
    "clip": file("clip:CLIPAdapter", DENSE, {"normalize": True}, {"backend": "open_clip"}, **BOTH),
    "dino": file(
        "grounding_dino:GroundingDINOAdapter", EXTRACT, {"box_threshold": 0.25, "text_threshold": 0.2}, **BOTH
    ),
    "owlv2": file("owlv2:Owlv2Adapter", EXTRACT, {"score_threshold": 0.1}, {"score_threshold": 0.1}, **SEEN),
    "siglip": file("siglip:SiglipAdapter", DENSE, {"normalize": True}, **BOTH),
    "siglip-open-clip": file(
        "siglip:SiglipAdapter",
        DENSE,
        loadtime={"backend": "open_clip", "open_clip_model_id": "hf-hub:org/siglip-open-clip", "dense_dim": 96},
        **BOTH,
    ),
    "colpali": file("colpali:ColPaliAdapter", PAGES, {"muvera": {}}, {"muvera_config": MUVERA}, **BOTH),
    "reranker-vl": file("qwen3_vl_reranker:Qwen3VLRerankerAdapter", SCORE, {"instruction": INSTRUCTION}, **BOTH),
    "nemo": file(
        "nemo_colembed:NemoColEmbedAdapter",
        PAGES,
        {"normalize": True, "batch_size": 4, "max_seq_length": 8192},
        {"trust_remote_code": True, "token_dim": 96, "muvera_config": MUVERA},
        **BOTH,
    ),
    "qwen3-vl": file("qwen3_vl_embedding:Qwen3VLEmbeddingAdapter", DENSE, {"instruction": "Represent."}, **BOTH),
    "colsmol": file(
        "colsmol:ColSmolAdapter",
        PAGES,
        {"normalize": True},
        {"muvera_config": MUVERA, "token_dim": 128},
        length=2048,
        profiles={"muvera": runtime(normalize=True, **AS_FDE)},
        **BOTH,
    ),
    "colqwen2": file("colqwen2:ColQwen2Adapter", PAGES, {"batch_size": 4}, {"muvera_config": MUVERA}, **BOTH),
    "florence2": file("florence2:Florence2Adapter", EXTRACT, {"task": "<OCR_WITH_REGION>", "num_beams": 1}, **SEEN),
    "donut": file("donut:DonutAdapter", EXTRACT, {"task": "<s_docvqa>", "max_new_tokens": 512}, **SEEN),
    "glm-ocr": file("glm_ocr:GlmOcrAdapter", EXTRACT, {"max_new_tokens": 8192}, {"default_task": "ocr"}, **SEEN),
    "lighton-ocr": file("lighton_ocr:LightOnOCRAdapter", EXTRACT, {"max_new_tokens": 4096}, **SEEN),
    "gliner2-entities": ENTITIES_OF_GLINER2,
    "gliner25": {"hf_id": "fastino/gliner2.5-base-v1", **ENTITIES_OF_GLINER2},
    "gliner2-decide": file("gliner2.decide:GLiNER2DecideAdapter", EXTRACT, {}, {"cuda_graphs": "bucketed"}, length=512),
    "gliformer": file("gliformer.adapter:GLiFormerAdapter", {**DENSE, **EXTRACT}, length=2048),
    "whisper": file("whisper.adapter:WhisperAdapter", EXTRACT, length=448, text=False, audio=True),
    "privacy-filter": file("privacy_filter.adapter:PrivacyFilterAdapter", EXTRACT, length=128_000),
    "paddle-ocr": file("paddleocr_vl:PaddleOCRVLAdapter", EXTRACT, {"task": "ocr"}, **SEEN),
}

NOT_SERVED: dict[str, dict[str, Any]] = {
    "gliner25-multi": {
        "hf_id": "fastino/GLiNER2.5-multi-Decide",
        **file("gliner2.decide:GLiNER2DecideAdapter", EXTRACT, length=2048),
    },
    "nemo-v1": {
        "hf_id": "nvidia/llama-nemoretriever-colembed-3b-v1",
        **file("nemo_colembed:NemoColEmbedAdapter", PAGES, {}, {"trust_remote_code": True, "token_dim": 96}, **BOTH),
    },
}


def write(directory: Path, served: Collection[str] = tuple(SERVED)) -> None:
    """Write those that are not served, and those of SERVED with these names, as files."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, document in {**{name: SERVED[name] for name in served}, **NOT_SERVED}.items():
        origin = {"package_backed": True} if name == "docling" else {"hf_id": f"org/{name}"}
        named = {"sie_id": sie_id(name), **origin, **document}
        (directory / f"org__{name}.yaml").write_text(yaml.safe_dump(named, sort_keys=False))


def sie_id(name: str) -> str:
    return name if name == "docling" else f"org/{name}"
