"""Text cleaning of SigLIP's and open_clip's tokenizers, as normalizers of a tokenizer. No torch."""

from collections.abc import Mapping, Sequence

from tokenizers import Regex, Tokenizer, normalizers

from sie_triton.inputs.tokenizer import after

_SPACES = (normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip())
_LOWER = normalizers.Lowercase()
# ASCII only.
_PUNCTUATION = normalizers.Replace(Regex(r"[!-/:-@\[-`{-~]"), "")

# By open_clip's names. The last two are the cleaning of transformers' tokenizers of SigLIP and SigLIP 2.
STEPS: Mapping[str, Sequence[normalizers.Normalizer]] = {
    "whitespace": _SPACES,
    "lower": (*_SPACES, _LOWER),
    "canonicalize": (normalizers.Replace("_", " "), _PUNCTUATION, _LOWER, *_SPACES),
    "siglip": (_LOWER, _PUNCTUATION, *_SPACES),
    "siglip2": (_LOWER,),
}


def cleaning(tokenizer: Tokenizer, way: str) -> Tokenizer:
    """Make `tokenizer` clean texts first, and return it. `way` is a key of STEPS; empty: no cleaning."""
    return after(tokenizer, STEPS[way]) if way else tokenizer
