"""Token ids for comparisons with the library: ordinary ones, and those that a model may treat differently."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from sie_triton.contract.arrays import Ints


@dataclass(frozen=True)
class Draws:
    """Token ids below `vocab_size`. `special`: tokens that the model's configuration names, padding first."""

    vocab_size: int
    special: Sequence[int] = (0,)

    @property
    def padding(self) -> int:
        return self.special[0]

    def ordinary(self, count: int, seed: int = 0) -> Ints:
        """Return random tokens, int32 [count], from the middle of the vocabulary: special tokens are at its ends."""
        low, high = self.vocab_size // 4, 3 * self.vocab_size // 4
        return np.random.default_rng(seed).integers(low, high, count, dtype=np.int32)

    def mixed(self, count: int, seed: int = 0, *, starts: int = 0, ends: int = 0) -> Ints:
        """Return int32 [count]: special tokens among ordinary ones, with padding as the first `starts` tokens and the
        last `ends`."""
        ids = self.ordinary(count, seed)
        ids[1::3] = np.resize(self.special, len(ids[1::3]))
        ids[:starts] = self.padding
        ids[max(0, count - ends) :] = self.padding
        return ids


def draws_of(model: PreTrainedModel) -> Draws:
    """Return the token ids of `model`."""
    vocab_size = int(model.config.get_text_config().vocab_size)
    named = dict.fromkeys(each for each in named_ids(model) if 0 <= each < vocab_size)
    return Draws(vocab_size, tuple(named) or (0,))


def named_ids(model: PreTrainedModel) -> Iterator[int]:
    """Yield the tokens that the configuration of `model` names, padding first, and the padding of its embeddings."""
    for name in ("pad", "bos", "eos", "cls", "sep", "mask", "unk", "decoder_start"):
        value = getattr(model.config.get_text_config(), f"{name}_token_id", None)
        yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, int))
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
            yield module.padding_idx
