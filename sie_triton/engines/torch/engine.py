"""PyTorch and transformers as an engine: packed where the model supports it, else padded."""

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from transformers import PreTrainedModel

from sie_triton.checkpoints.contents import OPEN_CLIP, WEIGHTS
from sie_triton.checkpoints.open_clip import OpenClipFiles
from sie_triton.contract.spec import AUTO, ModelSpec
from sie_triton.engines.base import Answers, Engine
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch.checkpoint import Checkpoint
from sie_triton.engines.torch.encoder import TorchEncoder, load_model, model_of
from sie_triton.engines.torch.faults import empty_cache, is_out_of_memory, is_unusable
from sie_triton.engines.torch.graph_comparison import may_have_graph, refuse, take_graph
from sie_triton.engines.torch.int8 import quantize, refusal
from sie_triton.engines.torch.multimodal import LanguageModel
from sie_triton.engines.torch.open_clip import renamed
from sie_triton.engines.torch.precision import choose_dtype, computes_int8
from sie_triton.engines.torch.probe import choose_path
from sie_triton.engines.torch.process import release_team
from sie_triton.errors import LoadError
from sie_triton.system.host.footprint import CUDA_CONTEXT_BYTES

log = logging.getLogger(__name__)

# Measurement: this model's values overflow float16.
OVERFLOWS = "overflows_float16"

# Measurement: how the model's answers differ in 8 bits; empty if they do not.
INT8_ANSWERS = "int8_answers"

_threads = threading.local()


class Preparable(Protocol):
    """A part of a model that can be prepared for speed."""

    def prepare(self, attention_backend: str) -> None: ...


P = TypeVar("P", bound=Preparable)


class TorchEngine(Engine):
    """PyTorch and transformers. `dtype`: number format of forward passes. `has_int8`: encoders' layers have 8 bits."""

    name = "torch"

    def __init__(self, spec: ModelSpec, device: str, measurements: Measurements) -> None:
        super().__init__(spec, device, measurements)
        self.dtype = choose_dtype(spec.runtime.precision, device)
        self.has_int8 = computes_int8(spec.runtime.precision, device)
        self.graphs_are_files = device == "cpu"
        self._settled: dict[str, TorchEncoder] = {}
        self._longest: dict[str, int] = {}
        if measurements.get(OVERFLOWS):
            self.avoid_float16()
        if device != "cpu":
            # Almost every sub-batch has a new shape, and cuDNN's attention builds a plan for each shape.
            torch.backends.cuda.enable_cudnn_sdp(False)

    def load(self, directory: Path, auto: Any = None, config: Mapping[str, Any] | None = None) -> PreTrainedModel:
        """Load the safetensors in `directory` as transformers' class `auto`; `config` replaces config.json.

        Raise LoadError if they are missing or invalid.
        """
        return load_model(directory, self.dtype, self.device, auto, config)

    def avoid_float16(self) -> None:
        """Replace float16 by bfloat16. Raise LoadError if the configuration requests float16."""
        if self.dtype is torch.float16:
            if self.spec.runtime.precision:
                message = "float16 cannot be served: this model's numbers overflow in it"
                raise LoadError(f"{message}; write compute_precision: bfloat16 into its model file", "unsupported")
            self.dtype = torch.bfloat16

    def widen(self) -> None:
        """Switch to bfloat16, in later processes too, and discard the verdicts that were measured in float16."""
        self.avoid_float16()
        log.warning("%s: float16 does not hold this model's numbers: using bfloat16", self.spec.model)
        self.measurements.put(**{OVERFLOWS: True, **dict.fromkeys(map(probe_name, self._settled))})
        self._settled.clear()

    def load_part(self, config: Mapping[str, Any], weights: Checkpoint, prefix: str) -> PreTrainedModel:
        """Load an encoder from the weights below `prefix` in a larger checkpoint. Errors as in `load`."""
        return model_of(config, weights.below(prefix), weights.directory, self.dtype, self.device)

    def load_towers(self, files: OpenClipFiles) -> PreTrainedModel:
        """Load open_clip's two towers as a transformers model. Errors as in `load`."""
        # In model.safetensors, a wrapper class of the model's own code adds this prefix.
        name, inside = (OPEN_CLIP, "") if (files.directory / OPEN_CLIP).exists() else (WEIGHTS, "model.")
        weights = Checkpoint(files.directory, self.dtype, self.device, files=name)
        state = renamed(files.kind, weights.below(inside), str(files.directory))
        return model_of(files.config.values, state, files.directory, self.dtype, self.device)

    def encoder(self, model: PreTrainedModel, is_causal: bool | None = None) -> TorchEncoder:
        """Make an encoder; with `is_causal` None, config.json decides, else the architecture."""
        return TorchEncoder(directed(model, is_causal), self.spec.runtime.attention_backend)

    def language_model(self, model: PreTrainedModel, is_causal: bool | None = None) -> LanguageModel:
        """Make a language model, which takes states of text and of images."""
        return LanguageModel(directed(model, is_causal), self.spec.runtime.attention_backend)

    def prepared(self, part: P) -> P:
        """Prepare `part` for speed and return it. Raise LoadError if it does not support the attention backend."""
        part.prepare(self.spec.runtime.attention_backend)
        return part

    def settle(self, encoder: TorchEncoder, part: str = "", max_length: int | None = None, hides: int = 0) -> None:
        """Prepare `encoder` and choose a path with the results of transformers. Raise LoadError if there is none.

        `part` names a part of a model that has several; `max_length` is then the part's own limit. Items of up to
        `hides` tokens may end in some that are not attended to.
        """
        encoder.loras.base = self.spec.model
        longest = max_length or self.spec.max_sequence_length
        verdict = choose_path(encoder, longest, self.measurements, probe_name(part), hides)
        name = f"{self.spec.model}, {part}," if part else self.spec.model
        log.info("%s runs %s (%s), attention kernel %s", name, verdict.path, verdict.reason, encoder.kernel)
        self._settled[part] = encoder
        self._longest[part] = longest

    def round_weights(self, answers: Callable[[], Answers], difference: Callable[[Answers, Answers], str]) -> int:
        if not self.has_int8 or not self._settled:
            return 0
        known = self.measurements.get(INT8_ANSWERS)
        if known:
            raise refusal(known)
        before = answers() if known is None else {}
        num_bytes = sum(encoder.weights_bytes for encoder in self._settled.values())
        for part, encoder in self._settled.items():
            quantize(encoder, self._longest[part], self.measurements, f"{probe_name(part)}_int8")
        if known is None:
            known = difference(before, answers())
            self.measurements.put(**{INT8_ANSWERS: known})
            if known:
                raise refusal(known)
        return num_bytes - sum(encoder.weights_bytes for encoder in self._settled.values())

    def may_have_graphs(self) -> Mapping[str, TorchEncoder]:
        # A graph has attention and layers of its own, so it would replace a backend or a precision that was asked for.
        may_replace = self.spec.runtime.attention_backend == AUTO and not self.has_int8
        settled = self._settled.items() if may_replace else ()
        return {part: each for part, each in settled if may_have_graph(each, self.measurements, part)}

    def take_graph(
        self, part: str, path: Path, num_threads: int, seconds: Callable[[Callable[[], object]], float]
    ) -> int:
        return take_graph(self._settled[part], path, num_threads, self.measurements, part, seconds)

    def refuse_graphs(self, reason: str) -> None:
        for part in self._settled:
            refuse(self.measurements, part, reason)

    def use_threads(self, count: int) -> None:
        """Set the number per thread, as PyTorch keeps it; a new thread copies the number last set in any thread."""
        if self.device == "cpu" and getattr(_threads, "count", None) != count:
            torch.set_num_threads(count)
            _threads.count = count

    def release_threads(self) -> None:
        if self.device == "cpu":
            release_team()

    def is_out_of_memory(self, error: BaseException) -> bool:
        return is_out_of_memory(error)

    def is_broken(self, error: BaseException) -> bool:
        return is_unusable(self.device)

    def free_unused_memory(self) -> None:
        super().free_unused_memory()
        empty_cache()

    def used_bytes(self) -> int:
        """Return the memory, in bytes, that ending this process frees; on a GPU, what PyTorch holds there."""
        if self.device == "cpu":
            return super().used_bytes()
        return int(torch.cuda.memory_reserved(self.device)) + CUDA_CONTEXT_BYTES


def probe_name(part: str) -> str:
    """Key of the part's verdict in the measurements."""
    return f"probe_{part}" if part else "probe"


def directed(model: PreTrainedModel, is_causal: bool | None) -> PreTrainedModel:
    """Set whether attention of `model` is causal, and return it; with `is_causal` None, config.json decides.

    transformers reads the configuration to build a mask; attention functions read the attribute of their module.
    """
    config = model.config.get_text_config()
    said = getattr(config, "is_causal", None) if is_causal is None else is_causal
    if said is None:
        return model
    config.is_causal = said
    for module in model.modules():
        if hasattr(module, "is_causal"):
            setattr(module, "is_causal", said)  # noqa: B010  # to mypy a module's attributes are tensors
    return model
