"""What a model file may ask for and a family does not do: refused where it would serve something else than was asked
for, warned about where it changes nothing."""

from collections.abc import Iterator, Mapping

from sie_triton.catalog.options import AdapterOptions, Profile
from sie_triton.families import FAMILIES

# Of runtime options: those of dense vectors, and those of texts that are not read in pairs.
OF_DENSE = ("pooling",)
OF_SINGLE_TEXTS = ("query_template", "doc_template", "default_instruction")


def unread(inputs: Mapping[str, bool], family: str) -> Iterator[str]:
    """A client would be told that a model has inputs which it has not."""
    for name, wanted in inputs.items():
        if wanted != (name == "text"):
            said = str(wanted).lower()
            yield f"inputs.{name}: {said} cannot be served; the family {family} reads text and nothing else"


def refusals(options: AdapterOptions, family: str) -> Iterator[str]:
    """Of the default profile's options."""
    known, where = FAMILIES[family].loadtime, "profiles.default.adapter_options"
    for key in sorted(options.loadtime.model_fields_set - {*known, "trust_remote_code"}):
        allowed = ", ".join(("trust_remote_code", *known))
        yield f"{where}.loadtime.{key}: is no option of the family {family}; its own are {allowed}"
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


def without_effect(name: str, profile: Profile, default: Profile, family: str) -> Iterator[str]:
    """Of any profile."""
    different = profile.differs(default)
    if different:
        yield (
            f"profiles.{name}: is not served, as it needs weights of its own: "
            f"{', '.join(different)} differs from profiles.default"
        )
        return
    kind = FAMILIES[family]
    dead = (*(() if "dense" in kind.outputs else OF_DENSE), *(OF_SINGLE_TEXTS if kind.scores_pairs else ()))
    for key in dead:
        if getattr(profile.adapter_options.runtime, key) is not None:
            yield f"profiles.{name}.adapter_options.runtime.{key}: has no effect in the family {family}"
