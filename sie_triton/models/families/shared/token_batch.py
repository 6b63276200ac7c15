"""Adapters of text families, and access to the features of a batch. No torch."""

from typing import TYPE_CHECKING

from sie_triton.checkpoints.modules import TextFiles
from sie_triton.contract import Batch
from sie_triton.contract.arrays import Ints
from sie_triton.contract.tensors import INPUT_IDS, PROMPT_TOKENS
from sie_triton.models.families.base import Adapter

if TYPE_CHECKING:
    from sie_triton.engines.torch.encoder import TorchEncoder


class TokenAdapter(Adapter):
    """Base of adapters whose token ids are in the vocabulary of their encoder."""

    encoder: "TorchEncoder"

    def __init__(self, encoder: "TorchEncoder") -> None:
        super().__init__(encoder, limits={INPUT_IDS.name: encoder.vocab_size - 1})


def tokens(batch: Batch) -> tuple[Ints, Ints]:
    """Return input_ids int32 [tokens], items one after another, and lengths int32 [items], each at least 1."""
    input_ids, lengths = batch.features[INPUT_IDS.name]
    assert lengths is not None
    return input_ids, lengths


def prompt_tokens(batch: Batch) -> Ints:
    """Return int32 [items]: how many leading tokens of each item pooling leaves out."""
    return batch.features[PROMPT_TOKENS.name].values


def separate(batch: Batch) -> list[Ints]:
    """Return the input_ids of each item, int32 [tokens]."""
    return batch.features[INPUT_IDS.name].split()


def limits_of(files: TextFiles) -> dict[str, int]:
    """Return the largest token id, by config.json, for engines without weights; empty if the file does not say."""
    config = files.config if files.config.has("vocab_size") else files.config.fields("text_config")
    return {INPUT_IDS.name: config.integer("vocab_size", least=1) - 1} if config.has("vocab_size") else {}
