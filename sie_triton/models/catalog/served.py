"""Keys of a model file that this server does not support.

A key is refused if ignoring it would change results; otherwise the user is warned that it has no effect.
"""

from collections.abc import Iterator, Mapping

from sie_triton.contract.spec import REMOTE
from sie_triton.models.catalog.endpoint import EXAMPLE
from sie_triton.models.catalog.family_keys import option_names, own_parameters
from sie_triton.models.catalog.options import LORA, OF_BOTH, ProfileConfig
from sie_triton.models.families import FAMILIES, Family, family

# Keys under loadtime that SIE's own libraries need and this server does not, with the reason.
ELSEWHERE_LOADTIME: Mapping[str, str] = {
    "trust_remote_code": "code from a model repository is never run; transformers' own is used if it has the model",
    "code_revision": "code from a model repository is never run",
    "attn_implementation": "SIE_ATTENTION_BACKEND sets it for all models",
    "config_kwargs": "this server has no such switches",
    "uses_legacy_transformers_cache": "this server has no such cache",
    "mem_fraction_static": "the controller divides memory among models",
    "dropout": "it only matters in training",
    **dict.fromkeys(("cuda_graphs", "cuda_graph_tokens"), "CUDA graphs are made where they are faster"),
    **dict.fromkeys(("fused_kernels", "fused_rope", "modernbert_flash"), "kernels are chosen for the device"),
    **dict.fromkeys(("prefix_reuse", "prefix_cache_mb"), "no prefix is kept from one request to the next"),
    "max_prompt_tokens": "the family limits what is read beside a text",
    "max_concurrent_dispatch": "batches are formed by cost",
    "document_timeout_s": "the deadline of a request is the document's",
    "max_file_size_bytes": "SIE_MAX_DOCUMENT_BYTES limits documents of all models",
    **dict.fromkeys(("base_processor_model", "base_processor_revision"), "the model has a processor of its own"),
    "smve_config": "it only matters to profiles with smve, which are not served",
}
ELSEWHERE_RUNTIME: Mapping[str, str] = {
    "batch_size": "batches are formed by cost",
    "output_dtype": "a request names the type of its vectors; float32 is the default",
    "precompute_labels": "a bi-encoder's label embeddings are always cached",
}

CONFIG_KWARGS = ("unpad_inputs", "use_memory_efficient_attention", "use_cache")


def unread(inputs: Mapping[str, bool], name: str, kind: Family) -> Iterator[str]:
    """Yield a line for each input that the file promises and the family does not read.

    Otherwise the server would advertise inputs to clients that the model does not have.
    """
    for each, wanted in inputs.items():
        if wanted and each not in kind.inputs and each not in kind.unread_inputs:
            read = " and ".join(kind.inputs)
            yield f"inputs.{each}: true cannot be served; the family {name} reads only {read}"


def denied(inputs: Mapping[str, bool], name: str, kind: Family) -> Iterator[str]:
    """Yield a line for each input that the file denies although the family reads it."""
    for each, wanted in inputs.items():
        if not wanted and each in kind.inputs:
            yield f"inputs.{each}: false has no effect; the family {name} reads it"


def refusals(default: ProfileConfig, name: str, kind: Family) -> Iterator[str]:
    """Yield a line for each key of the default profile that the family cannot apply to its weights."""
    if (lora := default.adapter_options.runtime.lora_id) and not kind.takes_loras:
        remedy = "remove it to serve the base weights, or merge the adapter into them"
        yield f"profiles.default.{LORA}: {lora!r} cannot be served; the family {name} takes no LoRA adapters; {remedy}"
    engine, usable = default.computed_by, ", ".join(kind.engines)
    if engine is not None and engine not in kind.engines:
        key = "engine" if default.engine else "endpoint"
        yield f"profiles.default.{key}: {engine!r} cannot be served; the family {name} can use {usable}"
    elif engine == REMOTE and default.endpoint is None:
        yield f"profiles.default.endpoint: is missing; the engine {REMOTE} needs the URL of a server, like {EXAMPLE}"


def unknown_options(profile: str, given: ProfileConfig, name: str, kind: Family) -> Iterator[str]:
    options, names = given.adapter_options, option_names(kind)
    where = f"profiles.{profile}.adapter_options"
    of_both = own_parameters(kind) | set(OF_BOTH)
    for key in sorted(options.loadtime.own.keys() - names - of_both - set(ELSEWHERE_LOADTIME)):
        allowed = ", ".join(sorted(names | of_both))
        yield f"{where}.loadtime.{key}: is not an option of the family {name}; its options are {allowed}"
    asked = options.loadtime.own.get("config_kwargs") or {}
    if not isinstance(asked, Mapping):
        yield f"{where}.loadtime.config_kwargs: must be a mapping; its keys may be {', '.join(CONFIG_KWARGS)}"
        asked = {}
    for key in sorted(set(map(str, asked)) - set(CONFIG_KWARGS)):
        yield f"{where}.loadtime.config_kwargs.{key}: cannot be served; allowed are {', '.join(CONFIG_KWARGS)}"
    own = options.runtime.own.keys() - set(ELSEWHERE_RUNTIME)
    for key in sorted(own - names - own_parameters(kind) - built_in_names()):
        known = ", ".join((*type(options.runtime).model_fields, *sorted(names | own_parameters(kind))))
        yield f"{where}.runtime.{key}: unknown key; allowed keys are {known}"


def without_effect(name: str, profile: ProfileConfig, family_name: str, kind: Family) -> Iterator[str]:
    """Yield a line for each key of a served profile that only other families use."""
    runtime = profile.adapter_options.runtime
    yield from _ignored_by_engine(name, profile, kind)
    of_single_texts = ("query_template", "doc_template", "default_instruction") if kind.scores_pairs else ()
    pairs = [key for key in of_single_texts if getattr(runtime, key) is not None]
    others = built_in_names() - option_names(kind) - own_parameters(kind)
    for key in (*sorted(runtime.own.keys() & others), *pairs):
        yield f"profiles.{name}.adapter_options.runtime.{key}: has no effect in the family {family_name}"


def _ignored_by_engine(name: str, profile: ProfileConfig, kind: Family) -> Iterator[str]:
    """Yield a line for each key that the profile's engine ignores, for instance because the endpoint decides."""
    engine, options = profile.computed_by or kind.default_engine, profile.adapter_options
    unread = kind.unread_options.get(engine, ())
    keys = [
        *(f"adapter_options.loadtime.{key}" for key in unread if key in options.loadtime.own),
        *(f"adapter_options.runtime.{key}" for key in unread if key in options.runtime.own),
        *(["compute_precision"] if engine == REMOTE and profile.compute_precision else []),
    ]
    yield from (f"profiles.{name}.{key}: has no effect with the engine {engine}" for key in keys)


def not_needed(profile: ProfileConfig) -> Iterator[str]:
    """Yield a line for each key of a served profile that only SIE's own adapters need."""
    options, where = profile.adapter_options, "adapter_options"
    if profile.adaptive_batching is not None:
        yield "adaptive_batching: is not needed: batches form while the device works"
    for key in sorted(options.loadtime.own.keys() & ELSEWHERE_LOADTIME.keys()):
        yield f"{where}.loadtime.{key}: is not needed: {ELSEWHERE_LOADTIME[key]}"
    for key in sorted(options.runtime.own.keys() & ELSEWHERE_RUNTIME.keys()):
        yield f"{where}.runtime.{key}: is not needed: {ELSEWHERE_RUNTIME[key]}"


def built_in_names() -> frozenset[str]:
    """Return the names of all options and request parameters of all built-in families."""
    kinds = [family(name) for name in FAMILIES]
    return frozenset().union(*(option_names(kind) | own_parameters(kind) for kind in kinds))
