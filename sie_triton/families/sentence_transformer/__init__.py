"""Dense models: Transformer → Pooling → Dense layers; Normalize is left to postprocess."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sie_triton.checkpoints.sentence_transformers import SentenceTransformerFiles
from sie_triton.contract import ENCODE_OUTPUTS
from sie_triton.families.base import Adapter, Family, Options, Recognised
from sie_triton.inputs import Processor
from sie_triton.spec import ModelSpec

if TYPE_CHECKING:
    from sie_triton.engines.torch.engine import TorchEngine

Pooling = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", "last"]


@dataclass(frozen=True)
class PoolingOptions(Options):
    """`pooling` None: the model's own files decide; `last` is another name of lasttoken."""

    pooling: Pooling | None = None

    def modes(self, saved: tuple[str, ...]) -> tuple[str, ...]:
        """What is used, where the files say `saved`."""
        if self.pooling is None:
            return saved
        return ("lasttoken",) if self.pooling == "last" else (self.pooling,)


class SentenceTransformer(Family):
    outputs = (ENCODE_OUTPUTS["dense"],)
    options = PoolingOptions
    reference_adapters = (
        "sentence_transformer:SentenceTransformerDenseAdapter",
        "bert_flash:BertFlashAdapter",
        "xlm_roberta_flash:XLMRobertaFlashAdapter",
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
