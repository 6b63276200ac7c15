"""Dense models: Transformer → Pooling → Dense layers; Normalize is left to postprocess."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sie_triton.checkpoints.sentence_transformers import SentenceTransformerFiles
from sie_triton.contract import ENCODE_OUTPUTS
from sie_triton.families.base import Adapter, Options, Recognised, TextFamily
from sie_triton.inputs import Processor
from sie_triton.spec import ModelSpec

if TYPE_CHECKING:
    from sie_triton.engines.torch.engine import TorchEngine

log = logging.getLogger(__name__)
Pooling = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", "last_token", "last"]

LAST = ("last", "last_token")


@dataclass(frozen=True)
class PoolingOptions(Options):
    """`pooling` is for checkpoints that do not say it themselves; `last` and `last_token` are lasttoken."""

    pooling: Pooling | None = None

    def modes(self, files: SentenceTransformerFiles) -> tuple[str, ...]:
        """What is used. Where the checkpoint says something else, that holds, and the log says so."""
        if self.pooling is None:
            return files.pooling
        asked = ("lasttoken",) if self.pooling in LAST else (self.pooling,)
        if not files.says_pooling or asked == files.pooling:
            return asked
        kept = " and ".join(files.pooling)
        log.warning("pooling: the model file says %s, its checkpoint %s, which is used", self.pooling, kept)
        return files.pooling


@dataclass(frozen=True)
class DenseOptions(PoolingOptions):
    """`causal`, also `is_causal` of `forward_kwargs`, False: every token sees all of its item, in a decoder too.

    `dense_projection_path` is the folder of the Dense layer, for checkpoints with several, `dense_dim` the width of its
    vectors.
    """

    causal: bool | None = None
    forward_kwargs: dict[Literal["is_causal"], bool] | None = None
    dense_projection_path: str | None = None
    dense_dim: int | None = None

    @property
    def is_causal(self) -> bool | None:
        """None: as the architecture is."""
        return (self.forward_kwargs or {}).get("is_causal") if self.causal is None else self.causal


class SentenceTransformer(TextFamily):
    outputs = (ENCODE_OUTPUTS["dense"],)
    options = DenseOptions
    reference_adapters = (
        "sentence_transformer:SentenceTransformerDenseAdapter",
        "bert_flash:BertFlashAdapter",
        "xlm_roberta_flash:XLMRobertaFlashAdapter",
        "modernbert_flash:ModernBERTFlashAdapter",
        "rope_flash:RoPEFlashAdapter",
        "nomic_flash:NomicFlashAdapter",
        "qwen2_flash:Qwen2FlashAdapter",
        "pytorch_embedding:PyTorchEmbeddingAdapter",
        "sglang:SGLangEmbeddingAdapter",
        "sglang.embedding:SGLangEmbeddingAdapter",
    )

    def recognise(self, directory: Path) -> Recognised:
        """Whatever no other family has recognised."""
        files = SentenceTransformerFiles.read(directory)
        reason = "a transformer whose states are pooled"
        return Recognised(reason, files.text.max_sequence_length, {"dense": files.dim}, normalize=files.normalize)

    def processor(self, spec: ModelSpec, directory: Path) -> Processor:
        from sie_triton.inputs.tokenizer import TextTokenizer

        return TextTokenizer.load(directory, spec.max_sequence_length)

    def load(self, spec: ModelSpec, directory: Path, engine: "TorchEngine") -> Adapter:
        from sie_triton.families.sentence_transformer.adapter import load

        options: Any = self.options_of(spec)
        return load(directory, engine, options)
