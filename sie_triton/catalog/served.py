"""What a model file may ask for and is not served: refused where it would serve something else than was asked for,
warned about where it changes nothing."""

from collections.abc import Iterator, Mapping

from sie_triton.catalog.endpoint import EXAMPLE
from sie_triton.catalog.of_family import option_names, own_parameters
from sie_triton.catalog.options import LORA, OF_BOTH, Profile
from sie_triton.families import FAMILIES, Family, family
from sie_triton.spec import REMOTE

# Of runtime options: those of texts that are not read in pairs.
OF_SINGLE_TEXTS = ("query_template", "doc_template", "default_instruction")

# Of SIE's model files, under loadtime: how its own libraries are told to compute the same.
ELSEWHERE_LOADTIME: Mapping[str, str] = {
    "trust_remote_code": "a model's own code is never run; transformers' own is, where it knows the architecture",
    "code_revision": "a model's own code is never run",
    "attn_implementation": "SIE_ATTENTION_BACKEND says it for all models",
    "config_kwargs": "nothing here has these switches",
    "uses_legacy_transformers_cache": "nothing here keeps such a cache",
    "mem_fraction_static": "the controller shares memory among models",
    "dropout": "it is of training",
    "append_eos": "the tokenizer's own files decide",
}
ELSEWHERE_RUNTIME: Mapping[str, str] = {
    "batch_size": "batches are formed by cost",
    "precompute_labels": "what a bi-encoder makes of labels is always kept",
}

CONFIG_KWARGS = ("unpad_inputs", "use_memory_efficient_attention", "use_cache")


def unread(inputs: Mapping[str, bool], name: str, kind: Family) -> Iterator[str]:
    """A client would be told that a model has inputs which it has not."""
    for each, wanted in inputs.items():
        if wanted != (each in kind.inputs) and each not in kind.unread_inputs:
            said = str(wanted).lower()
            read = " and ".join(kind.inputs)
            yield f"inputs.{each}: {said} cannot be served; the family {name} reads {read} and nothing else"


def refusals(default: Profile, name: str, kind: Family) -> Iterator[str]:
    """Of what the default profile asks of the weights."""
    if (lora := default.adapter_options.runtime.lora_id) and not kind.takes_loras:
        remedy = "leave it out to serve the weights without it, or merge it into them"
        yield f"profiles.default.{LORA}: {lora!r} cannot be served; the family {name} takes no LoRA adapters; {remedy}"
    engine, usable = default.computed_by, ", ".join(kind.engines)
    if engine is not None and engine not in kind.engines:
        key = "engine" if default.engine else "endpoint"
        yield f"profiles.default.{key}: {engine!r} cannot be served; the family {name} can use {usable}"
    elif engine == REMOTE and default.endpoint is None:
        yield f"profiles.default.endpoint: is missing; the engine {REMOTE} needs the URL of a server, like {EXAMPLE}"


def unknown_options(profile: str, given: Profile, name: str, kind: Family) -> Iterator[str]:
    options, names = given.adapter_options, option_names(kind)
    where = f"profiles.{profile}.adapter_options"
    of_both = own_parameters(kind) | set(OF_BOTH)
    for key in sorted(options.loadtime.own.keys() - names - of_both - set(ELSEWHERE_LOADTIME)):
        allowed = ", ".join(sorted(names | of_both))
        yield f"{where}.loadtime.{key}: is no option of the family {name}; it has {allowed}"
    asked = options.loadtime.own.get("config_kwargs") or {}
    for key in sorted(set(asked) - set(CONFIG_KWARGS)):
        yield f"{where}.loadtime.config_kwargs.{key}: cannot be served; allowed are {', '.join(CONFIG_KWARGS)}"
    own = options.runtime.own.keys() - set(ELSEWHERE_RUNTIME)
    for key in sorted(own - names - own_parameters(kind) - known_elsewhere()):
        known = ", ".join((*type(options.runtime).model_fields, *sorted(names | own_parameters(kind))))
        yield f"{where}.runtime.{key}: unknown key; known here are {known}"


def without_effect(name: str, profile: Profile, family_name: str, kind: Family) -> Iterator[str]:
    """Of a profile that is served: what another family would use."""
    runtime = profile.adapter_options.runtime
    yield from _computed_elsewhere(name, profile, kind)
    pairs = [key for key in OF_SINGLE_TEXTS if kind.scores_pairs and getattr(runtime, key) is not None]
    others = known_elsewhere() - option_names(kind) - own_parameters(kind)
    for key in (*sorted(runtime.own.keys() & others), *pairs):
        yield f"profiles.{name}.adapter_options.runtime.{key}: has no effect in the family {family_name}"


def _computed_elsewhere(name: str, profile: Profile, kind: Family) -> Iterator[str]:
    """What its endpoint decides."""
    engine, options = profile.computed_by or kind.engines[0], profile.adapter_options
    unread = kind.unread_options.get(engine, ())
    keys = [
        *(f"adapter_options.loadtime.{key}" for key in unread if key in options.loadtime.own),
        *(f"adapter_options.runtime.{key}" for key in unread if key in options.runtime.own),
        *(["compute_precision"] if engine == REMOTE and profile.compute_precision else []),
    ]
    yield from (f"profiles.{name}.{key}: has no effect with the engine {engine}" for key in keys)


def not_needed(name: str, profile: Profile) -> Iterator[str]:
    """Of a profile that is served: what SIE's own adapters want to be told."""
    options, where = profile.adapter_options, f"profiles.{name}.adapter_options"
    for key in sorted(options.loadtime.own.keys() & ELSEWHERE_LOADTIME.keys()):
        yield f"{where}.loadtime.{key}: is not needed: {ELSEWHERE_LOADTIME[key]}"
    for key in sorted(options.runtime.own.keys() & ELSEWHERE_RUNTIME.keys()):
        yield f"{where}.runtime.{key}: is not needed: {ELSEWHERE_RUNTIME[key]}"


def known_elsewhere() -> frozenset[str]:
    """What some family of ours would read at run time."""
    kinds = [family(name) for name in FAMILIES]
    return frozenset().union(*(option_names(kind) | own_parameters(kind) for kind in kinds))
