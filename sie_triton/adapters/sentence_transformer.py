"""The dense family: Transformer → Pooling → Dense layers; Normalize is left to postprocess."""

import inspect
from importlib import import_module
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel

from sie_triton.adapters.allocator import keep_freed_pages
from sie_triton.adapters.base import PackedBatch
from sie_triton.adapters.pooling import pool
from sie_triton.adapters.prepack import can_prepack, prepack
from sie_triton.attention import PACKED_ATTENTION, Segments, attending, choose_kernel
from sie_triton.errors import LoadError
from sie_triton.spec import ModelSpec
from sie_triton.weights.sentence_transformers import DenseLayer, SentenceTransformerFiles, position_offset

PACKED_MODEL_TYPES = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert")

ROWS = 16

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class SentenceTransformerAdapter:
    """A bidirectional encoder run without padding."""

    def __init__(self, encoder: torch.nn.Module, head: torch.nn.Module, pooling: tuple[str, ...], offset: int) -> None:
        self._encoder = encoder
        self._head = head
        self._pooling = pooling
        self._offset = offset
        self._takes_token_types = "token_type_ids" in inspect.signature(encoder.forward).parameters
        parameters = [*encoder.parameters(), *head.parameters()]
        self.weights_bytes = sum(p.numel() * p.element_size() for p in parameters)
        self.vocab_size = int(encoder.config.vocab_size)  # type: ignore[union-attr,arg-type]
        self._device = parameters[0].device
        self._kernel = choose_kernel("auto", self._device, parameters[0].dtype)
        if can_prepack(parameters[0]):
            prepack(encoder)
            keep_freed_pages()

    @torch.inference_mode()
    def forward(self, batch: PackedBatch) -> dict[str, npt.NDArray[np.float32]]:
        num_tokens = len(batch.input_ids)
        spare = spare_rows(num_tokens) if self._device.type == "cpu" else 0
        input_ids = self._tensor(np.pad(batch.input_ids, (0, spare)))
        lengths = self._tensor(batch.lengths if spare == 0 else np.append(batch.lengths, spare))
        hidden = self._hidden_states(input_ids, lengths, Segments.of(lengths.tolist()))[:num_tokens]
        lengths = lengths[: len(batch.lengths)]
        pooled = pool(hidden, lengths, self._tensor(batch.prompt_tokens), self._pooling)
        return {"dense": self._head(pooled.float()).cpu().numpy()}

    def _hidden_states(self, input_ids: torch.Tensor, lengths: torch.Tensor, segments: Segments) -> torch.Tensor:
        starts = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
        positions = torch.arange(len(input_ids), device=self._device) - starts + self._offset
        inputs = {"input_ids": input_ids[None], "position_ids": positions[None]}
        if self._takes_token_types:
            inputs["token_type_ids"] = torch.zeros_like(input_ids)[None]
        with attending(segments, self._kernel):
            output: torch.Tensor = self._encoder(**inputs).last_hidden_state
        return output[0]

    def _tensor(self, array: npt.NDArray[np.int32]) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(self._device)


def spare_rows(num_tokens: int) -> int:
    """Rows to add so that matrix products on a CPU get a number of rows that is even, and has come before.

    oneDNN compiles a kernel for every new number of rows and is slower on odd ones; at most 3 % is added.

    >>> spare_rows(518), spare_rows(300), spare_rows(42)
    (10, 0, 0)
    """
    return -num_tokens % ROWS if num_tokens >= 32 * ROWS else 0


def load(spec: ModelSpec, directory: Path, device: str) -> SentenceTransformerAdapter:
    """Load a sentence-transformers directory; LoadError says what in it cannot be used."""
    files = SentenceTransformerFiles.read(directory)
    model_type = files.config.get("model_type")
    if model_type not in PACKED_MODEL_TYPES:
        raise LoadError(f"model_type {model_type!r} is not supported; supported are {', '.join(PACKED_MODEL_TYPES)}")
    if not list(files.transformer.glob("*.safetensors")):
        raise LoadError(f"no .safetensors in {files.transformer}; other formats are refused")
    dtype = DTYPES[spec.runtime.precision]
    try:
        config = AutoConfig.from_pretrained(files.transformer)
        encoder, report = AutoModel.from_pretrained(
            files.transformer,
            config=config,
            dtype=dtype,
            attn_implementation=PACKED_ATTENTION,
            use_safetensors=True,
            output_loading_info=True,
            **({"add_pooling_layer": False} if model_type != "distilbert" else {}),
        )
        head = torch.nn.Sequential(*(m for layer in files.dense for m in _dense_modules(layer)))
    except (OSError, ValueError, KeyError, RuntimeError) as exc:
        raise LoadError(f"weights in {directory} cannot be loaded: {exc}") from exc
    if report["missing_keys"]:
        raise LoadError(f"weights in {directory} lack {', '.join(sorted(report['missing_keys'])[:3])} …")
    pooling = (spec.pooling,) if spec.pooling else files.pooling
    return SentenceTransformerAdapter(
        encoder.eval().to(device), head.eval().to(device), pooling, position_offset(files.config)
    )


def _dense_modules(layer: DenseLayer) -> list[torch.nn.Module]:
    linear = torch.nn.Linear(layer.in_features, layer.out_features, bias=layer.bias)
    weights = load_file(layer.directory / "model.safetensors")
    linear.load_state_dict({key.removeprefix("linear."): value for key, value in weights.items()})
    module, _, name = layer.activation.rpartition(".")
    if not module.startswith("torch.nn."):
        raise LoadError(f"Dense activation {layer.activation} is refused; only classes of torch.nn are allowed")
    activation: torch.nn.Module = getattr(import_module(module), name)()
    return [linear, activation]
