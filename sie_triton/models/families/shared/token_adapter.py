"""Base of adapters whose encoder reads token ids."""

from sie_triton.contract.tensors import INPUT_IDS
from sie_triton.engines.torch.encoder import TorchEncoder
from sie_triton.models.families.base import Adapter


class TokenAdapter(Adapter):
    """An adapter whose token ids are in the vocabulary of its encoder."""

    encoder: TorchEncoder

    def __init__(self, encoder: TorchEncoder) -> None:
        super().__init__(encoder, limits={INPUT_IDS.name: encoder.vocab_size - 1})
