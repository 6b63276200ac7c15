"""Late-interaction models (ColBERT): a small vector for each token."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sie_triton.checkpoints.contents import PICKLED_LAYERS
from sie_triton.checkpoints.files import has_file
from sie_triton.checkpoints.modules import modules_of
from sie_triton.checkpoints.multi_vector import is_saved_by_pylate
from sie_triton.checkpoints.stanford_colbert import ARCHITECTURE, METADATA, is_stanford_colbert, read_multi_vector
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
    files = (METADATA, *PICKLED_LAYERS)

    def recognise(self, directory: Path) -> Recognised | None:
        reason = _reason(directory)
        if not reason:
            return None
        files = read_multi_vector(directory)
        layers = [layer.directory for layer in files.dense]
        return Recognised(
            f"{reason}: {files.chain}",
            files.text.max_sequence_length,
            {"multivector": files.dim},
            scores=True,
            weights=(files.text.transformer, *(each for each in layers if each != files.text.transformer)),
        )

    def processor(self, spec: ModelSpec, directory: Path) -> Processor:
        from sie_triton.families.multivector.tokens import MultiVectorTokenizer

        return MultiVectorTokenizer.load(directory, spec.max_sequence_length, spec.profiles)

    def load(self, spec: ModelSpec, directory: Path, engine: "TorchEngine") -> Adapter:
        from sie_triton.families.multivector.adapter import load

        return load(spec, directory, engine)


def _reason(directory: Path) -> str:
    """Empty where nothing speaks for a late-interaction model."""
    if is_stanford_colbert(directory):
        return METADATA if has_file(directory / METADATA) else f"config.json names {ARCHITECTURE}"
    if "MultiVectorMask" in [name for name, _ in modules_of(directory)]:
        return "modules.json names MultiVectorMask"
    return "config_sentence_transformers.json is PyLate's" if is_saved_by_pylate(directory) else ""
