"""Export an encoder as an ONNX graph. A separate process does this once per checkpoint; the graph is cached."""

from pathlib import Path

import numpy as np
import torch

from sie_triton.engines.onnx.graph import mask_of
from sie_triton.engines.onnx.session import ATTENTION_MASK, INPUT_IDS, POSITION_IDS, STATES, TOKEN_TYPE_IDS
from sie_triton.engines.torch.encoder import TorchEncoder

# Tokens of each of two items; their sum equals no constant size of an input.
SAMPLE = (5, 4)


class Packed(torch.nn.Module):
    """The encoder's model as a function of tensors alone."""

    def __init__(self, encoder: TorchEncoder) -> None:
        super().__init__()
        self._encoder = encoder
        self.model = encoder.model

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        inputs = {INPUT_IDS: input_ids, POSITION_IDS: position_ids, ATTENTION_MASK: attention_mask}
        if token_type_ids is not None:
            inputs[TOKEN_TYPE_IDS] = token_type_ids
        return self._encoder.forward(**inputs)


def export(encoder: TorchEncoder, path: Path) -> None:
    """Write the graph, with the library's eager attention, to `path`, and its weights to a file next to it.

    Raises the exporter's errors if it cannot trace the model.
    """
    lengths = np.array(SAMPLE, np.int32)
    items, places = np.repeat(np.arange(2), lengths), np.concatenate([np.arange(length) for length in SAMPLE])
    ids = torch.full((1, len(items)), encoder.vocab_size // 2)
    mask = mask_of(items, places, lengths, is_causal=encoder.is_causal)
    tokens = torch.export.Dim("tokens", min=2, max=65536)
    inputs = {
        INPUT_IDS: ids,
        POSITION_IDS: torch.from_numpy(places)[None] + (encoder.padding_position + 1),
        ATTENTION_MASK: torch.from_numpy(mask),
    }
    if encoder.num_token_types:
        inputs[TOKEN_TYPE_IDS] = torch.zeros_like(ids)
    shapes = {name: {2: tokens, 3: tokens} if name == ATTENTION_MASK else {1: tokens} for name in inputs}
    encoder.model.set_attn_implementation("eager")
    program = torch.onnx.export(
        Packed(encoder).eval(),
        kwargs=inputs,
        dynamic_shapes=shapes,
        input_names=list(inputs),
        output_names=[STATES],
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.save(path, external_data=True)
