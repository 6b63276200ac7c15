"""Families that model files name and this version does not serve: what they are for, and SIE's names of them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Planned:
    """`does` finishes "a model that"; `reference_adapters` are its names in SIE's own model files."""

    does: str
    reference_adapters: tuple[str, ...]


PLANNED: Mapping[str, Planned] = {
    "nemo_colembed": Planned("embeds pages for late interaction", ("nemo_colembed:NemoColEmbedAdapter",)),
}
