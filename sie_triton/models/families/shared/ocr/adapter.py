"""The forward pass of families that read a page and write its text."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tokenizers

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.contract import Features, Ragged
from sie_triton.contract.arrays import Ints
from sie_triton.contract.tensors import IMAGE_SIZES, INPUT_IDS, LENGTHS, PIXEL_LENGTHS, PIXELS, READ
from sie_triton.engines.torch.generate import StopAtDeadline
from sie_triton.engines.torch.page_writer import PageWriter
from sie_triton.models.families.shared.ocr import MARKDOWN
from sie_triton.models.families.shared.readers.adapter import SAMPLE_TOKENS, USUAL_TOKENS, ReaderAdapter
from sie_triton.models.families.shared.readers.processor import MAX_BEAMS, MAX_NEW_TOKENS, NEW_TOKENS
from sie_triton.models.inputs.features import copies


class OcrAdapter(ReaderAdapter):
    """Base of adapters for page readers.

    `counts` is that of Sizes, `most_pixels` is the number of pixels in the largest image. `page` are the features of a
    typical page, for measuring.
    """

    encoder: PageWriter

    def __init__(
        self,
        writer: PageWriter,
        tokenizer: tokenizers.Tokenizer,
        files: PageFiles,
        most_pixels: int,
        counts: Callable[[int, int], tuple[int, int]],
        page: Features,
    ) -> None:
        limits = {
            LENGTHS.name: files.longest,
            PIXEL_LENGTHS.name: 3 * most_pixels,
            NEW_TOKENS.name: MAX_NEW_TOKENS,
            READ.name: most_pixels + files.longest + MAX_BEAMS * MAX_NEW_TOKENS,
        }
        super().__init__(writer, tokenizer, limits)
        self._counts = counts
        one = {**page, NEW_TOKENS.name: Ragged(np.array([SAMPLE_TOKENS], np.int32))}
        self.sample = partial(copies, one, len(page[INPUT_IDS.name].values) + USUAL_TOKENS)

    def label(self, item: int, features: Features) -> str:
        """Return the label of the text written about an item."""
        return MARKDOWN

    def kind(self, element: Any, prompt: Ints) -> int:
        return 0 if self.encoder.pads else len(prompt)

    def elements(self, features: Features) -> Sequence[Any]:
        """Return the image of each item, uint8 [height, width, 3]."""
        (pixels, num_bytes), sizes = features[PIXELS.name], features[IMAGE_SIZES.name].values
        assert num_bytes is not None
        if not sizes.all() or (3 * sizes.prod(axis=1, dtype=np.int64) != num_bytes).any():
            raise ValueError("an item must have an image of 3 bytes a pixel")
        images = np.split(pixels, np.cumsum(num_bytes)[:-1])
        return [image.reshape(*size, 3) for image, size in zip(images, sizes.tolist(), strict=True)]

    def answers(
        self, images: Sequence[Any], prompts: Sequence[Ints], new_tokens: int, beams: int, deadline: StopAtDeadline
    ) -> list[list[int]]:
        for image, prompt in zip(images, prompts, strict=True):
            if np.count_nonzero(prompt == self.encoder.image_token) != self._counts(*image.shape[:2])[1]:
                raise ValueError("an image must have as many tokens as states")
        return self.encoder(images, prompts, new_tokens=new_tokens, num_beams=beams, deadline=deadline)

    def text(self, tokens: Sequence[int], item: int, features: Features) -> str:
        """Return the label and the text as JSON."""
        written = self._tokenizer.decode(tokens, skip_special_tokens=True).strip()
        return json.dumps([self.label(item, features), written])
