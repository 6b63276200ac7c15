"""How SigLIP's and open_clip's tokenizers clean texts before they cut them, as steps of a tokenizer. No torch."""

from collections.abc import Mapping, Sequence

from tokenizers import Regex, Tokenizer, normalizers

from sie_triton.inputs.tokenizer import after

_SPACES = (normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip())
_LOWER = normalizers.Lowercase()
# Of ASCII, without the line, which becomes a space.
_PUNCTUATION = (normalizers.Replace("_", " "), normalizers.Replace(Regex(r"[!-/:-@\[-`{-~]"), ""))

# By open_clip's names for them; the last is what transformers' tokenizer of SigLIP 2 does.
STEPS: Mapping[str, Sequence[normalizers.Normalizer]] = {
    "whitespace": _SPACES,
    "lower": (*_SPACES, _LOWER),
    "canonicalize": (*_PUNCTUATION, _LOWER, *_SPACES),
    "lower case": (_LOWER,),
}


def cleaning(tokenizer: Tokenizer, way: str) -> Tokenizer:
    """The same, made to clean texts first; empty: as they are."""
    return after(tokenizer, STEPS[way]) if way else tokenizer
