"""The forward pass of families that generate an answer about an image or a sound."""

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import tokenizers
import torch

from sie_triton.contract import Batch, Features, Ragged, Rows
from sie_triton.contract.arrays import Ints, item_lengths
from sie_triton.contract.tensors import INPUT_IDS, LENGTHS, PIXEL_LENGTHS, PIXELS, READ
from sie_triton.engines.torch.generate import Generator, StopAtDeadline, Writer
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.shared.readers.processor import GENERATED, MAX_BEAMS, NEW_TOKENS, num_beams
from sie_triton.models.inputs.features import copies

# Few tokens for measuring: the cost of the image differs between machines, and a pass must be short.
SAMPLE_TOKENS = 4
USUAL_TOKENS = 512


class ReaderAdapter(Adapter):
    """Base of adapters that generate answers.

    Items with different answer lengths or beams are computed one after another.
    """

    def __init__(self, writer: Writer, tokenizer: tokenizers.Tokenizer, limits: Mapping[str, int]) -> None:
        super().__init__(writer, limits={INPUT_IDS.name: writer.vocab_size - 1, **limits})
        self._tokenizer = tokenizer

    @abstractmethod
    def elements(self, features: Features) -> Sequence[Any]:
        """Return the image or sound of each item; raise ValueError if one is missing."""

    @abstractmethod
    def answers(
        self, elements: Sequence[Any], prompts: Sequence[Ints], new_tokens: int, beams: int, deadline: StopAtDeadline
    ) -> Sequence[Sequence[Any]]:
        """Generate: prompts int32 [tokens] → each answer, usually its tokens; empty if the deadline passed."""

    @abstractmethod
    def text(self, answer: Sequence[Any], item: int, features: Features) -> str:
        """Return the text that `findings` reads, from the answer for an item of a batch with these features."""

    def kind(self, element: Any, prompt: Ints) -> Hashable:
        """Return a value that must be equal for items that are computed together."""
        return len(prompt)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        prompts, elements = batch.features[INPUT_IDS.name].split(), self.elements(batch.features)
        if not all(map(len, prompts)):
            raise ValueError("an item must have a prompt")
        new_tokens = batch.features[NEW_TOKENS.name].values.tolist()
        beams = [num_beams(options) for options in batch.options] or [1] * len(prompts)
        alike: dict[tuple[Hashable, int, int], list[int]] = {}
        for i, prompt in enumerate(prompts):
            alike.setdefault((self.kind(elements[i], prompt), new_tokens[i], beams[i]), []).append(i)
        deadline = StopAtDeadline(batch.deadline_ns)
        answers: dict[int, Sequence[Any]] = {}
        for (_, most, count), items in alike.items():
            if deadline.is_over:
                break
            shown, asked = [elements[i] for i in items], [prompts[i] for i in items]
            answers |= zip(items, self.answers(shown, asked, most, count, deadline), strict=True)
        texts = [self.text(answers.get(i, []), i, batch.features).encode() for i in range(len(prompts))]
        return {
            GENERATED.name: np.frombuffer(b"".join(texts), np.uint8),
            GENERATED.lengths: item_lengths(texts),
        }


class OneSizeAdapter(ReaderAdapter):
    """Base of adapters whose images all have one size.

    `image_length` is the cost of an image. `longest_prompt` and `longest_answer` are in tokens.
    """

    encoder: Generator

    def __init__(
        self,
        generator: Generator,
        tokenizer: tokenizers.Tokenizer,
        image_length: int,
        longest_prompt: int,
        longest_answer: int,
    ) -> None:
        limits = {
            LENGTHS.name: longest_prompt,
            PIXEL_LENGTHS.name: generator.image_bytes,
            NEW_TOKENS.name: longest_answer,
            READ.name: image_length + longest_prompt + MAX_BEAMS * longest_answer,
        }
        super().__init__(generator, tokenizer, limits)
        self.sample = partial(copies, self.item(image_length), image_length + USUAL_TOKENS)

    def elements(self, features: Features) -> Sequence[Any]:
        """Return the image of each item, uint8 [bytes]."""
        pixels, sizes = features[PIXELS.name]
        assert sizes is not None
        if (sizes != self.encoder.image_bytes).any():
            raise ValueError("an item must have an image")
        return list(pixels.reshape(len(sizes), -1))

    def item(self, image_length: int) -> Features:
        """Return the features of one image, for measuring."""
        return {
            READ.name: Ragged(np.array([image_length], np.int32)),
            INPUT_IDS.name: Ragged.of([np.ones(1, np.int32)]),
            PIXELS.name: Ragged.of([np.zeros(self.encoder.image_bytes, np.uint8)]),
            NEW_TOKENS.name: Ragged(np.array([SAMPLE_TOKENS], np.int32)),
        }
