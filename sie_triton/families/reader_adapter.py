"""The forward pass of families that answer about images in words of their own."""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tokenizers
import torch

from sie_triton.contract import Batch, Features, Ragged, Rows
from sie_triton.contract.tensors import INPUT_IDS, LENGTHS, PIXEL_LENGTHS, PIXELS, READ
from sie_triton.engines.torch.generate import Deadline, Generator
from sie_triton.families.base import Adapter
from sie_triton.families.reading import GENERATED, GENERATED_LENGTHS, MAX_BEAMS, NEW_TOKENS, num_beams

Ints = npt.NDArray[np.int32]

# Measured with few tokens: what the image costs differs from machine to machine, and a pass must end soon.
SAMPLE_TOKENS = 4
USUAL_TOKENS = 512


class ReaderAdapter(Adapter):
    """`image_length` is what is read of an image, `longest_prompt` and `longest_answer` are in tokens."""

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
            INPUT_IDS.name: generator.vocab_size - 1,
            LENGTHS.name: longest_prompt,
            PIXEL_LENGTHS.name: generator.image_bytes,
            NEW_TOKENS.name: longest_answer,
            READ.name: image_length + longest_prompt + MAX_BEAMS * longest_answer,
        }
        super().__init__(generator, limits=limits)
        self._tokenizer, self._image_length = tokenizer, image_length
        self.sample = self.sampled

    @abstractmethod
    def answers(
        self, pixels: npt.NDArray[np.uint8], ids: Ints, new_tokens: int, beams: int, deadline: Deadline
    ) -> list[list[int]]:
        """uint8 [items, bytes], int32 [items, tokens] → the tokens of each answer."""

    @abstractmethod
    def text(self, tokens: Sequence[int], item: int, features: Features) -> str:
        """Of the answer about an item of a batch with these features: what `findings` reads."""

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        """Items that differ in the length of their prompts or answers, or in beams, one after another."""
        prompts, pixels = self._inputs(batch.features)
        new_tokens = batch.features[NEW_TOKENS.name].values.tolist()
        beams = [num_beams(options) for options in batch.options] or [1] * len(prompts)
        alike: dict[tuple[int, int, int], list[int]] = {}
        for i, prompt in enumerate(prompts):
            alike.setdefault((len(prompt), new_tokens[i], beams[i]), []).append(i)
        deadline = Deadline(batch.deadline_ns)
        answers: dict[int, list[int]] = {}
        for (_, most, width), items in alike.items():
            ids = np.stack([prompts[i] for i in items])
            if deadline.is_over:
                break
            answers |= zip(items, self.answers(pixels[items], ids, most, width, deadline), strict=True)
        texts = [self.text(answers.get(i, []), i, batch.features).encode() for i in range(len(prompts))]
        return {
            GENERATED.name: np.frombuffer(b"".join(texts), np.uint8),
            GENERATED_LENGTHS.name: np.array(list(map(len, texts)), np.int32),
        }

    def _inputs(self, features: Features) -> tuple[list[Ints], npt.NDArray[np.uint8]]:
        """Of each item: its prompt, and its image in a row of [items, bytes]."""
        (ids, lengths), (pixels, sizes) = features[INPUT_IDS.name], features[PIXELS.name]
        assert lengths is not None
        assert sizes is not None
        if not lengths.all() or (sizes != self.encoder.image_bytes).any():
            raise ValueError("an item must have a prompt and an image")
        return np.split(ids, np.cumsum(lengths)[:-1]), pixels.reshape(len(lengths), -1)

    def sampled(self, lengths: Sequence[int]) -> Features:
        """As many images as cost about that together."""
        count = max(1, round(sum(lengths) / (self._image_length + USUAL_TOKENS)))
        size = self.encoder.image_bytes
        return {
            READ.name: Ragged(np.full(count, self._image_length, np.int32)),
            INPUT_IDS.name: Ragged(np.ones(count, np.int32), np.ones(count, np.int32)),
            PIXELS.name: Ragged(np.zeros(count * size, np.uint8), np.full(count, size, np.int32)),
            NEW_TOKENS.name: Ragged(np.full(count, SAMPLE_TOKENS, np.int32)),
        }
