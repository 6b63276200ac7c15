"""Late-interaction models (ColBERT): a small vector for each token."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sie_triton.checkpoints.files import read_fields
from sie_triton.checkpoints.modules import modules_of
from sie_triton.checkpoints.stanford_colbert import METADATA, is_stanford_colbert, read_multi_vector
from sie_triton.contract import ENCODE_OUTPUTS
from sie_triton.contract.tensors import INPUT_IDS
from sie_triton.families.base import Adapter, Family, Options, Recognised
from sie_triton.inputs import Processor
from sie_triton.spec import ModelSpec

if TYPE_CHECKING:
    from sie_triton.engines.torch.engine import TorchEngine


@dataclass(frozen=True)
class MultiVectorOptions(Options):
    """`muvera_config` fills a profile's empty `runtime.muvera`."""

    muvera_config: dict[str, Any] | None = None


class MultiVector(Family):
    outputs = (ENCODE_OUTPUTS["multivector"],)
    score_modes = ("maxsim",)
    features = (INPUT_IDS,)
    options = MultiVectorOptions
    reference_adapters = (
        "colbert:ColBERTAdapter",
        "colbert_modernbert_flash:ColBERTModernBERTFlashAdapter",
        "colbert_rotary_flash:ColBERTRotaryFlashAdapter",
    )
    files = (METADATA,)

    def recognise(self, directory: Path) -> Recognised | None:
        reason = _reason(directory)
        if not reason:
            return None
        files = read_multi_vector(directory)
        return Recognised(reason, files.text.max_sequence_length, {"multivector": files.dim}, scores=True)

    def processor(self, spec: ModelSpec, directory: Path) -> Processor:
        from sie_triton.families.multivector.tokens import MultiVectorTokenizer

        return MultiVectorTokenizer.load(directory, spec.max_sequence_length)

    def load(self, spec: ModelSpec, directory: Path, engine: "TorchEngine") -> Adapter:
        from sie_triton.families.multivector.adapter import load

        return load(spec, directory, engine)


def _reason(directory: Path) -> str:
    """Empty where nothing speaks for a late-interaction model."""
    if is_stanford_colbert(directory):
        return "config.json names HF_ColBERT"
    if "MultiVectorMask" in [name for name, _ in modules_of(directory)]:
        return "modules.json names MultiVectorMask"
    saved = read_fields(directory / "config_sentence_transformers.json", required=False)
    is_pylate = saved.text("model_type", "") == "ColBERT"
    return "config_sentence_transformers.json says ColBERT" if is_pylate else ""
