"""Texts → packed token ids, tokenized as by sentence-transformers. No torch."""

import logging
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import tokenizers

from sie_triton.checkpoints.chat_template import is_rendered
from sie_triton.checkpoints.files import first_line, has_file, read_bytes, read_fields, shortened
from sie_triton.checkpoints.modules import TextFiles
from sie_triton.checkpoints.special_tokens import CONFIG, MAX_BYTES, REFUSED, TOKENIZER
from sie_triton.contract import LATE_CHUNKING, TRUNCATION_SIDE, Features, Part, Ragged
from sie_triton.contract.spec import Profile
from sie_triton.contract.tensors import INPUT_IDS, PROMPT_TOKENS, TRUNCATED
from sie_triton.errors import REASONS, InputError, LoadError
from sie_triton.models.inputs.base import Frame, Processor
from sie_triton.models.inputs.cutting import encoded, kept, truncation_side
from sie_triton.models.inputs.growth import check_growth
from sie_triton.models.inputs.prompt import Prompt, Prompted, overridden, prompt_of

log = logging.getLogger(__name__)

MUCH = 4


class TextTokenizer(Processor):
    """A tokenizer with its model's prompts; thread-safe."""

    # True if query and text go through the model together.
    reads_pairs: ClassVar[bool] = False

    pools_means = False  # a text's vector is the mean of the states of its tokens

    def __init__(self, tokenizer: tokenizers.Tokenizer, files: TextFiles) -> None:
        self._tokenizer = tokenizer
        self._max_length = int((tokenizer.truncation or {}).get("max_length", files.max_sequence_length))
        self._special_ids = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self.prompts = files.prompts
        self.default_prompt = files.default_prompt
        self.include_prompt = files.include_prompt

    @classmethod
    def load(cls, directory: Path, max_length: int, profiles: Sequence[Profile] = ()) -> Self:
        """Read the tokenizer of a model directory, truncating to `max_length` tokens.

        Log which of the model's own prompts `profiles` override.
        """
        files = TextFiles.read(directory)
        log_disagreements(files, max_length, profiles)
        longest = min(max_length, files.max_sequence_length)
        return cls(read_tokenizer(files, longest, pairs=cls.reads_pairs), files)

    def frame(self, part: Part) -> Frame:
        if part.query is None:
            return prompt_of(self.prompts, self.default_prompt, part)
        return self.cutting(part).question(part.query, part.instruction)

    def cutting(self, part: Part) -> "TextTokenizer":
        side = part.options.get(TRUNCATION_SIDE.name)
        is_own = side is None or side == truncation_side(self._tokenizer)
        return self if is_own else self._from_the_other_side

    def tokenizer_of(self, part: Part) -> tokenizers.Tokenizer:
        if part.options.get(LATE_CHUNKING.name) and not self.pools_means:
            problem = "this model's vectors are no means of the states of tokens; leave it out"
            raise InputError.at(f"parameter {LATE_CHUNKING.name}", problem)
        return self._tokenizer

    @cached_property
    def _from_the_other_side(self) -> Self:
        other = copy(self)
        other._switch_side()
        return other

    def _switch_side(self) -> None:
        self._tokenizer = with_other_side(self._tokenizer)

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        return packed_encodings(encoded(self._tokenizer, framed))

    def finish(self, features: Features, frame: Frame) -> Features:
        """Add the number of prompt tokens that pooling leaves out."""
        kept_out = self.prompt_tokens(frame.before) if isinstance(frame, Prompt) else 0
        _, lengths = features[INPUT_IDS.name]
        assert lengths is not None
        return {**features, PROMPT_TOKENS.name: Ragged(np.array([kept_out] * len(lengths), np.int32))}

    def question(self, query: str, instruction: str | None) -> Prompted[Any]:
        """Return the prompt that the model reads with each text that is scored against `query`.

        `instruction` None: the model's own. A part may be left out if `encode` would cut it anyway.
        """
        asked = (self.default_prompt if instruction is None else instruction) + query
        return Prompted(lambda: self.shortened(asked, self._max_length), len(asked))

    def shortened(self, text: str, max_length: int) -> str:
        """Return the part of `text` with the MUCH · `max_length` tokens that are kept; Unreadable if it is too long.

        Truncation shortens the longer of two texts: if both are that long, the other may lose one token instead.
        """
        return kept(self._tokenizer, text, MUCH * max_length)

    def prompt_tokens(self, prompt: str) -> int:
        """Return how many leading tokens pooling must leave out; 0 if the prompt is pooled too.

        The prompt is tokenized alone and counted without a closing special token, as in sentence-transformers.
        """
        if self.include_prompt or not prompt:
            return 0
        ids = self._tokenizer.encode(prompt).ids
        return len(ids) - (bool(ids) and ids[-1] in self._special_ids)


def log_disagreements(files: TextFiles, max_length: int, profiles: Sequence[Profile] = ()) -> None:
    """Log where a model file and the model's own files disagree."""
    own = files.max_sequence_length
    if max_length > own:
        log.warning("texts are truncated to %d tokens, as the model's own files say, not to %d", own, max_length)
    if is_rendered(files.transformer):
        log.warning("texts are read as they are; sentence-transformers 6 would write them into the chat template")
    for line in (line for profile in profiles for line in overridden(files.prompts, profile)):
        log.warning("%s", line)


def read_tokenizer(files: TextFiles, max_length: int, *, pairs: bool = False) -> tokenizers.Tokenizer:
    """Read a tokenizer that truncates texts, or `pairs`, to `max_length` tokens. Raise LoadError if that fails."""
    tokenizer = truncating(open_tokenizer(files.transformer, pairs=pairs), max_length, pairs=pairs)
    return lowering(tokenizer) if files.do_lower_case else tokenizer


def read_whole(directory: Path) -> tokenizers.Tokenizer:
    """Read the tokenizer of a model directory, which truncates nothing. Raise LoadError if that fails."""
    files = TextFiles.read(directory)
    tokenizer = read_tokenizer(files, files.max_sequence_length)
    tokenizer.no_truncation()
    return tokenizer


def lowering(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Make `tokenizer` lowercase texts first unless it does so in any step, as in the library, and return it."""
    if "Lowercase(" in repr(tokenizer.normalizer):
        return tokenizer
    return after(tokenizer, [tokenizers.normalizers.Lowercase()])


def after(tokenizer: tokenizers.Tokenizer, first: Sequence[tokenizers.normalizers.Normalizer]) -> tokenizers.Tokenizer:
    """Make `tokenizer` apply the normalizers `first` before its own, and return it."""
    own = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
    tokenizer.normalizer = tokenizers.normalizers.Sequence([*first, *own])
    return tokenizer


def truncating(tokenizer: tokenizers.Tokenizer, max_length: int, *, pairs: bool = False) -> tokenizers.Tokenizer:
    """Make `tokenizer` truncate texts, or `pairs`, to `max_length` tokens, on its own side, and return it.

    Raise LoadError if the special tokens leave no room for a text.
    """
    around = tokenizer.num_special_tokens_to_add(pairs)
    if max_length <= around:  # the library would not truncate at all
        message = f"{max_length} tokens leave no room for a text besides the {around} special tokens"
        raise LoadError(f"{message}; raise max_sequence_length", "unsupported")
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length, direction=truncation_side(tokenizer))
    return tokenizer


def with_other_side(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a copy of `tokenizer` that cuts long texts on the other side."""
    other = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    other.encode_special_tokens = tokenizer.encode_special_tokens
    side = {"left": "right", "right": "left"}[truncation_side(tokenizer)]
    other.enable_truncation(int((tokenizer.truncation or {})["max_length"]), direction=side)
    return other


def padding(tokenizer: tokenizers.Tokenizer, length: int, token: str, on_left: bool) -> tokenizers.Tokenizer:
    """Make `tokenizer` pad texts to `length` tokens with `token`, and return it. LoadError if the token is unknown."""
    number = tokenizer.token_to_id(token)
    if number is None:
        raise LoadError(f"tokenizer.json: has no token {shortened(token)}, which is needed to pad texts", "corrupt")
    side = "left" if on_left else "right"
    tokenizer.enable_padding(direction=side, pad_id=number, pad_token=token, length=length)
    return tokenizer


def open_tokenizer(directory: Path, *, pairs: bool = False) -> tokenizers.Tokenizer:
    """Open tokenizer.json without its padding, and try it on a text or a pair. Raise LoadError if that fails."""
    _check_allowed(directory)
    path = directory / TOKENIZER
    if not has_file(path):
        raise LoadError(f"{TOKENIZER} is missing in {directory}; save the tokenizer beside the model", "not found")
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(read_bytes(path, MAX_BYTES))
        check_growth(tokenizer, path)
        tokenizer.no_padding()
        tokenizer.encode("a", "b" if pairs else None)
    except (KeyboardInterrupt, SystemExit, LoadError):
        raise
    except BaseException as exc:  # the library raises plain Exception, and its panics are not even that
        raise LoadError(f"{path}: cannot be read: {first_line(exc)}", "corrupt") from exc
    # tokenizer.json does not hold this setting.
    settings = read_fields(directory / CONFIG, required=False)
    tokenizer.encode_special_tokens = settings.flag("split_special_tokens", False)
    return tokenizer


def _check_allowed(directory: Path) -> None:
    """Raise LoadError if the tokenizer's library refuses it."""
    refused = read_fields(directory / REFUSED, required=False)
    if refused.values:
        reason = refused.text("reason")
        raise LoadError(refused.text("message"), reason if reason in REASONS else "corrupt")


def packed_encodings(encodings: Sequence[tokenizers.Encoding]) -> dict[str, Ragged]:
    """Pack the ids of all texts in one array, with a flag for each truncated text."""
    ids: list[Sequence[int]] = []
    cut: list[bool] = []
    for encoding in encodings:
        ids.append(encoding.ids)
        cut.append(bool(encoding.overflowing))
    return {**packed_ids(ids), TRUNCATED.name: Ragged(np.array(cut))}


def packed_ids(ids: Sequence[Sequence[int]]) -> dict[str, Ragged]:
    """Pack the ids of all texts in one array."""
    lengths = list(map(len, ids))
    flat = np.fromiter(chain.from_iterable(ids), np.int32, sum(lengths))
    return {INPUT_IDS.name: Ragged(flat, np.array(lengths, np.int32))}
