"""How SigLIP's and open_clip's tokenizers clean texts before they cut them, as steps of a tokenizer. No torch."""

from collections.abc import Mapping, Sequence

from tokenizers import Regex, Tokenizer, normalizers

from sie_triton.inputs.tokenizer import after

_SPACES = (normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip())
_LOWER = normalizers.Lowercase()
# Of ASCII.
_PUNCTUATION = normalizers.Replace(Regex(r"[!-/:-@\[-`{-~]"), "")

# By open_clip's names for them; the last two are what transformers' tokenizers of SigLIP and SigLIP 2 do.
STEPS: Mapping[str, Sequence[normalizers.Normalizer]] = {
    "whitespace": _SPACES,
    "lower": (*_SPACES, _LOWER),
    "canonicalize": (normalizers.Replace("_", " "), _PUNCTUATION, _LOWER, *_SPACES),
    "siglip": (_LOWER, _PUNCTUATION, *_SPACES),
    "siglip2": (_LOWER,),
}


def cleaning(tokenizer: Tokenizer, way: str) -> Tokenizer:
    """The same, made to clean texts first; empty: as they are."""
    return after(tokenizer, STEPS[way]) if way else tokenizer
