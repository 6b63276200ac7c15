"""Donut's forward pass: pages of one size, decoded side by side if their prompts have the same length."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from transformers import AutoModelForImageTextToText, DonutProcessor

from sie_triton.checkpoints.special_tokens import special_token
from sie_triton.contract import Features
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.generate import Generator, StopAtDeadline
from sie_triton.errors import LoadError
from sie_triton.models.families.donut import START, DonutFiles
from sie_triton.models.families.shared.readers.adapter import OneSizeAdapter
from sie_triton.models.inputs.tokenizer import open_tokenizer

# Names in XLM-RoBERTa's tokenizer, which Donut uses.
SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


class DonutAdapter(OneSizeAdapter):
    """Donut adapter. `special`: the padding token, the end token, and a token that is never generated, as texts."""

    def __init__(
        self, generator: Generator, tokenizer: tokenizers.Tokenizer, files: DonutFiles, special: Sequence[str]
    ) -> None:
        super().__init__(generator, tokenizer, files.num_patches, files.positions, files.positions)
        self._positions = files.positions
        self._added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        self._pad, self._eos, _ = special
        pad, eos, never = (tokenizer.token_to_id(each) for each in special)
        self._options = {"pad_token_id": pad, "eos_token_id": eos, "bad_words_ids": [[never]]}

    def answers(
        self, images: Sequence[Any], prompts: Sequence[Ints], new_tokens: int, beams: int, deadline: StopAtDeadline
    ) -> list[list[int]]:
        room = self._positions + 1 - len(prompts[0])
        return self.encoder(
            np.stack(images),
            ids={"decoder_input_ids": np.stack(prompts)},
            new_tokens=max(1, min(new_tokens, room)),
            num_beams=beams,
            deadline=deadline,
            **self._options,
        )

    def text(self, tokens: Sequence[int], item: int, features: Features) -> str:
        """Return the task and the parsed answer as JSON."""
        written = self._tokenizer.decode(tokens, skip_special_tokens=False)
        written = written.replace(self._eos, "").replace(self._pad, "").strip()
        task = START.match(written)
        return json.dumps([task[0], parsed(written[task.end() :].strip(), self._added)] if task else ["", {}])


def parsed(text: str, added: Collection[str]) -> Any:
    """Return a record or a list of records, by the library's parser; `added` are the tokenizer's added tokens.

    >>> parsed("<s_menu><s_nm>Tea</s_nm><sep/><s_nm>Pie</s_nm></s_menu><s_paid><yes/></s_paid>", {"<yes/>"})
    {'menu': [{'nm': 'Tea'}, {'nm': 'Pie'}], 'paid': 'yes'}
    """
    parser: Any = DonutProcessor.__new__(DonutProcessor)  # its parser reads nothing of a processor
    try:
        return parser.token2json(text, added_vocab=added)
    except RecursionError:
        return {"text_sequence": text}


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> DonutAdapter:
    files, tokenizer = DonutFiles.read(directory), open_tokenizer(directory)
    special = [special_token(directory, name, usual) for name, usual in SPECIAL.items()]
    for token in special:
        if tokenizer.token_to_id(token) is None:
            raise LoadError(f"{directory}: tokenizer.json has no token {token}", "corrupt")
    generator = engine.prepared(Generator(engine.load(directory, AutoModelForImageTextToText), files.plan))
    return DonutAdapter(generator, tokenizer, files, special)
