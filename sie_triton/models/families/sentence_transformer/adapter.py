"""Dense models' forward pass: token states pooled to one vector for each item."""

from pathlib import Path

import torch

from sie_triton.checkpoints.sentence_transformers import SentenceTransformerFiles
from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import DENSE
from sie_triton.engines.torch.dense_layers import dense_layers
from sie_triton.engines.torch.encoder import TorchEncoder, num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.pooling import Pooling
from sie_triton.errors import LoadError
from sie_triton.models.families.sentence_transformer import DenseOptions, log_normalize
from sie_triton.models.families.shared.token_batch import TokenAdapter, prompt_tokens, tokens


class SentenceTransformerAdapter(TokenAdapter):
    """Dense adapter.

    `head` takes the pooled states; its output, or the first `most` entries of it, of unit length if `is_unit`, is the
    vector.
    """

    def __init__(
        self, encoder: TorchEncoder, head: torch.nn.Module, pooling: tuple[str, ...], most: int | None, is_unit: bool
    ) -> None:
        super().__init__(encoder)
        self.weights_bytes += num_bytes(head)
        self._head = head
        self._pooling = pooling
        self._most, self._is_unit = most, is_unit

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        input_ids, lengths = tokens(batch)
        pool = Pooling(lengths, prompt_tokens(batch), self._pooling, batch.spans)
        pooled = pool(self.encoder.hidden_states(input_ids, lengths, extra_indices=[pool.indices]))
        vectors = self._head(pooled.float())
        if self._is_unit:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return {DENSE.name: vectors[:, : self._most].cpu().numpy()}


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> SentenceTransformerAdapter:
    options = DenseOptions.of(spec)
    files = SentenceTransformerFiles.read(directory, options.dense_projection_path)
    if options.dense_dim not in (None, files.dim):
        message = f"dense_dim: the model file says {options.dense_dim}, but the layers give {files.dim}"
        raise LoadError(message, "unsupported")
    encoder = engine.encoder(engine.load(files.text.transformer), options.is_causal)
    head = dense_layers(files.dense).eval().to(engine.device)
    engine.settle(encoder)
    log_normalize(engine.spec.profiles, files)
    return SentenceTransformerAdapter(encoder, head, options.modes(files), files.most, files.is_unit)
