"""Families of SIE that this version does not support: what they do, and SIE's names for them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Planned:
    """A family that is not supported.

    `does` completes "a model that …". `reference_adapters` are its names in SIE's model files.
    """

    does: str
    reference_adapters: tuple[str, ...]


PLANNED: Mapping[str, Planned] = {
    "nemo_colembed": Planned("embeds pages for late interaction", ("nemo_colembed:NemoColEmbedAdapter",)),
}
