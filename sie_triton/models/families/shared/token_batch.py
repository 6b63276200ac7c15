"""Access to the features of text families in a batch."""

from sie_triton.checkpoints.modules import TextFiles
from sie_triton.contract import Batch
from sie_triton.contract.arrays import Ints
from sie_triton.contract.tensors import INPUT_IDS, PROMPT_TOKENS


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
