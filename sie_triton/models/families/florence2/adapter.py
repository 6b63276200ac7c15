"""Florence-2's forward pass: images of one size, answered side by side if their prompts have the same length."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from transformers import AutoModelForImageTextToText

from sie_triton.contract import Features, Ragged
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import ORIGINAL_SIZES
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.generate import Generator, StopAtDeadline
from sie_triton.models.families.florence2 import TASK, Florence2Files, tokenizer_of
from sie_triton.models.families.florence2.answers import Answers
from sie_triton.models.families.florence2.original import load_original
from sie_triton.models.families.florence2.tasks import TASKS
from sie_triton.models.families.shared.readers.adapter import OneSizeAdapter


class Florence2Adapter(OneSizeAdapter):
    def __init__(self, generator: Generator, tokenizer: tokenizers.Tokenizer, files: Florence2Files) -> None:
        longest_prompt = files.positions - files.num_patches
        super().__init__(generator, tokenizer, files.num_patches, longest_prompt, files.positions)
        self._files = files
        self._answers = Answers(files.banned, files.least_area)
        eos = generator.config.text_config.eos_token_id
        self._closing = {eos} if isinstance(eos, int) else set(eos or ())

    def answers(
        self, images: Sequence[Any], prompts: Sequence[Ints], new_tokens: int, beams: int, deadline: StopAtDeadline
    ) -> list[list[int]]:
        seen = np.full((len(prompts), self._files.num_patches), self._files.image_token, np.int32)
        read = np.concatenate([seen, np.stack(prompts)], 1)
        return self.encoder(
            np.stack(images),
            ids={"input_ids": read, "attention_mask": np.ones_like(read)},
            new_tokens=new_tokens,
            num_beams=beams,
            deadline=deadline,
        )

    def text(self, tokens: Sequence[int], item: int, features: Features) -> str:
        """Return the task's name and the answer as JSON."""
        # The end token is also the first token. Padding follows the one that ends the answer.
        end = next((i for i, token in enumerate(tokens) if i and token in self._closing), len(tokens))
        written = self._tokenizer.decode(tokens[: end + 1], skip_special_tokens=False)
        height, width = features[ORIGINAL_SIZES.name].values[item].tolist()
        name = list(TASKS)[int(features[TASK.name].values[item])]
        return json.dumps([name, self._answers.read(TASKS[name], written, (width, height))])

    def item(self, image_length: int) -> Features:
        task, size = np.zeros(1, np.int32), np.ones((1, 2), np.int32)
        return {**super().item(image_length), TASK.name: Ragged(task), ORIGINAL_SIZES.name: Ragged(size)}


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> Florence2Adapter:
    files = Florence2Files.read(directory)
    is_ours = files.original is None
    model = engine.load(directory, AutoModelForImageTextToText) if is_ours else load_original(files, engine)
    return Florence2Adapter(engine.prepared(Generator(model, files.plan)), tokenizer_of(files), files)
