"""What a model file may ask for and a family does not do: refused where it would serve something else than was asked
for, warned about where it changes nothing."""

from collections.abc import Iterator, Mapping

from sie_triton.catalog.of_family import option_names
from sie_triton.catalog.options import Profile
from sie_triton.families import FAMILIES, Family, family

# Of runtime options: those of texts that are not read in pairs.
OF_SINGLE_TEXTS = ("query_template", "doc_template", "default_instruction")


def unread(inputs: Mapping[str, bool], name: str, kind: Family) -> Iterator[str]:
    """A client would be told that a model has inputs which it has not."""
    for each, wanted in inputs.items():
        if wanted != (each in kind.inputs):
            said = str(wanted).lower()
            read = " and ".join(kind.inputs)
            yield f"inputs.{each}: {said} cannot be served; the family {name} reads {read} and nothing else"


def refusals(profiles: Mapping[str, Profile], name: str, kind: Family) -> Iterator[str]:
    """Of all profiles; of the default one also what it asks of the weights."""
    for profile, each in profiles.items():
        yield from unknown_options(profile, each, name, kind)
    default = profiles["default"]
    options, where = default.adapter_options, "profiles.default.adapter_options"
    if options.loadtime.trust_remote_code:
        yield (
            f"{where}.loadtime.trust_remote_code: true cannot be served, a model's own code is never run; "
            "allowed is false: architectures that transformers knows need no code"
        )
    if options.runtime.lora_id is not None:
        yield (
            f"{where}.runtime.lora_id: {options.runtime.lora_id!r} cannot be served; "
            "leave it out to serve the weights without it, or merge it into them"
        )
    if default.engine is not None and default.engine not in kind.engines:
        usable = ", ".join(kind.engines)
        yield f"profiles.default.engine: {default.engine!r} cannot be served; the family {name} can use {usable}"


def unknown_options(profile: str, given: Profile, name: str, kind: Family) -> Iterator[str]:
    options, names = given.adapter_options, option_names(kind)
    where = f"profiles.{profile}.adapter_options"
    for key in sorted(options.loadtime.own.keys() - names):
        allowed = ", ".join(("trust_remote_code", *sorted(names)))
        yield f"{where}.loadtime.{key}: is no option of the family {name}; its own are {allowed}"
    for key in sorted(options.runtime.own.keys() - names - own_parameters(kind) - known_elsewhere()):
        known = ", ".join((*type(options.runtime).model_fields, *sorted(names | own_parameters(kind))))
        yield f"{where}.runtime.{key}: unknown key; known here are {known}"


def without_effect(name: str, profile: Profile, default: Profile, family_name: str, kind: Family) -> Iterator[str]:
    """Of any profile."""
    different = profile.differs(default, option_names(kind))
    if different:
        yield (
            f"profiles.{name}: is not served, as it needs weights of its own: "
            f"{', '.join(different)} differs from profiles.default"
        )
        return
    runtime = profile.adapter_options.runtime
    pairs = [key for key in OF_SINGLE_TEXTS if kind.scores_pairs and getattr(runtime, key) is not None]
    elsewhere = known_elsewhere() - option_names(kind) - own_parameters(kind)
    for key in (*sorted(runtime.own.keys() & elsewhere), *pairs):
        yield f"profiles.{name}.adapter_options.runtime.{key}: has no effect in the family {family_name}"


def own_parameters(kind: Family) -> frozenset[str]:
    return frozenset(parameter.name for parameter in kind.parameters)


def known_elsewhere() -> frozenset[str]:
    """What some family of ours would read at run time."""
    kinds = [family(name) for name in FAMILIES]
    return frozenset().union(*(option_names(kind) | own_parameters(kind) for kind in kinds))
