"""Texts and images → tokens for a language model, and pixels. No torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from sie_triton.contract import Features
from sie_triton.contract.spec import Runtime
from sie_triton.contract.tensors import IMAGE, TEXT
from sie_triton.errors import LoadError
from sie_triton.models.families.shared.text_or_image import TextOrImage, packed
from sie_triton.models.inputs.cutting import beginning
from sie_triton.models.inputs.pixels import Resize
from sie_triton.models.inputs.tokenizer import open_tokenizer

# A layer of the vision tower has about half the weights of one of the language model, and so takes half the time.
PATCHES_PER_TOKEN = 2

# How many padding tokens the library's processors append to a query, as room for computation.
AUGMENTATION = 10


@dataclass(frozen=True, slots=True)
class PageForm:
    """The prompt around a text, and the tokens before and after those of an image."""

    before_text: str
    after_text: str
    before_image: Sequence[int]
    after_image: Sequence[int]
    image_token: int


@dataclass(frozen=True, slots=True)
class PageImages:
    """Preprocessing of images: resizing, and the number of patches and of tokens for a height and width."""

    resize: Resize
    counts: Callable[[int, int], tuple[int, int]]


class PageProcessor(TextOrImage):
    """Processor of such items for a language model. A long text is truncated at its end."""

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, form: PageForm, images: PageImages, longest: int, runtime: Runtime
    ) -> None:
        super().__init__(images.resize, runtime)
        self._tokenizer, self._form, self._counts, self._longest = tokenizer, form, images.counts, longest
        self._num_after = len(tokens_of(tokenizer, form.after_text))
        around = len(tokens_of(tokenizer, form.before_text)) + self._num_after
        if longest <= around:
            message = f"{longest} tokens leave no room for a text: the prompt around each text has {around}"
            raise LoadError(f"{message}; increase max_sequence_length", "unsupported")

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        texts = iter(self._text_tokens([item[TEXT.name] for item in framed if IMAGE.name not in item]))
        images = [item.get(IMAGE.name) for item in framed]
        whole = [self._image_tokens(item) if IMAGE.name in item else next(texts) for item in framed]
        cut = [image is None and len(of) > self._longest for image, of in zip(images, whole, strict=True)]
        end = self._longest - self._num_after
        ids = [
            [*of[:end], *of[len(of) - self._num_after :]] if is_cut else of
            for of, is_cut in zip(whole, cut, strict=True)
        ]
        patches = [0 if image is None else self._counts(*image.shape[:2])[0] for image in images]
        read = [len(of) + num // PATCHES_PER_TOKEN for of, num in zip(ids, patches, strict=True)]
        return packed(read, cut, ids, images)

    def page(self, height: int, width: int) -> Features:
        """Return the features of one white page of this size, after resizing; for measuring."""
        return self.encode([{IMAGE.name: np.full((height, width, 3), 255, np.uint8)}])

    def _image_tokens(self, item: Any) -> Sequence[int]:
        """Return the tokens of an image with its prompt."""
        _, num_tokens = self._counts(*item[IMAGE.name].shape[:2])
        return [*self._form.before_image, *[self._form.image_token] * num_tokens, *self._form.after_image]

    def _text_tokens(self, texts: Sequence[str]) -> list[Sequence[int]]:
        form = self._form
        whole = [
            f"{form.before_text}{beginning(self._tokenizer, text, self._longest)}{form.after_text}" for text in texts
        ]
        encodings = self._tokenizer.encode_batch_fast(whole, add_special_tokens=False) if whole else []
        return [encoding.ids for encoding in encodings]


def whole_tokenizer(directory: Path) -> tokenizers.Tokenizer:
    """Open tokenizer.json without its truncation; raise LoadError if it cannot be read."""
    tokenizer = open_tokenizer(directory)
    tokenizer.no_truncation()
    return tokenizer


def tokens_of(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids
