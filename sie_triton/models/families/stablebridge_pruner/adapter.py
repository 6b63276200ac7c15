"""The pruner's forward pass: a score for query and passage, and one for each token of the passage."""

from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from sie_triton.checkpoints.cross_encoder import CrossEncoderFiles
from sie_triton.checkpoints.files import first_line
from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import SCORES
from sie_triton.engines.torch.encoder import num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.heads import states_at
from sie_triton.engines.torch.transfers import Indices, downloaded
from sie_triton.errors import LoadError
from sie_triton.models.families.shared.sequence_head import SequenceClassifier
from sie_triton.models.families.shared.token_batch import TokenAdapter, tokens
from sie_triton.models.families.stablebridge_pruner import KEEP_SCORES, PASSAGE, PrunerOptions, head_file

# Names of the head's layers; training runs may have saved them with a prefix.
FIRST, SECOND = "classifier.0.", "classifier.3."


class PrunerAdapter(TokenAdapter):
    def __init__(self, classifier: SequenceClassifier, head: nn.Sequential) -> None:
        super().__init__(classifier.encoder)
        self.weights_bytes += num_bytes(head)
        self._classifier, self._head = classifier, head

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        lengths = tokens(batch)[1]
        passage, counts = batch.features[PASSAGE.name]
        assert counts is not None
        if (passage[:, 0] >= np.repeat(lengths, counts)).any():
            raise ValueError(f"{PASSAGE.name}: names tokens behind the end of their piece")
        index = Indices(np.repeat(np.cumsum(lengths, dtype=np.int64) - lengths, counts) + passage[:, 0])
        places = self._classifier.places(batch)
        hidden = self._classifier.states(batch, index, places)
        kept = self._head(states_at(hidden, index)).float().sigmoid()
        scores, keep_scores = downloaded(self._classifier.logits_of(hidden, places).sigmoid()[:, 0], kept[:, 0])
        return {
            SCORES.name: scores,
            KEEP_SCORES.name: keep_scores,
            PASSAGE.name: passage,
            PASSAGE.lengths: counts,
        }


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> PrunerAdapter:
    options = PrunerOptions.of(spec)
    files = CrossEncoderFiles.read(directory)
    weights = head_weights(head_file(directory, options), options)
    classifier = SequenceClassifier(files.text.transformer, engine)
    width = int(classifier.encoder.config.hidden_size)
    if weights[f"{FIRST}weight"].shape[1] != width:
        given = weights[f"{FIRST}weight"].shape[1]
        raise LoadError(
            f"{directory}: the pruning head needs states of {given} entries, but the model's have {width}", "corrupt"
        )
    return PrunerAdapter(classifier, head_of(weights).to(engine.device, engine.dtype).eval())


def head_weights(path: Path, options: PrunerOptions) -> dict[str, torch.Tensor]:
    """Return the head's weights, named without prefix; raise LoadError if they do not agree with `options`."""
    try:
        saved = load_file(path)
    except (OSError, SafetensorError) as exc:
        raise LoadError(f"{path}: cannot be read: {first_line(exc)}", "corrupt") from exc
    wanted = {f"{layer}{kind}" for layer in (FIRST, SECOND) for kind in ("weight", "bias")}
    found = {wanted_name: saved[name] for wanted_name in wanted for name in saved if _is(name, wanted_name)}
    if missing := wanted - set(found):
        raise LoadError(f"{path}: has no {', '.join(sorted(missing))} of a pruning head", "corrupt")
    size, width = found[f"{FIRST}weight"].shape
    shapes = [tuple(found[name].shape) for name in sorted(wanted)]
    if shapes != [(size,), (size, width), (1,), (1, size)]:
        raise LoadError(f"{path}: is not a pruning head: its layers have shapes {shapes}", "corrupt")
    said = {"hidden_size": (width, options.hidden_size), "intermediate_size": (size, options.intermediate_size)}
    for name, (given, wanted_size) in said.items():
        if wanted_size not in (None, given):
            raise LoadError(f"{path}: {name} is {given}, but the model file says {wanted_size}", "corrupt")
    return found


def _is(name: str, wanted: str) -> bool:
    return name == wanted or name.endswith(f"pruning_head.{wanted}")


def head_of(weights: dict[str, torch.Tensor]) -> nn.Sequential:
    size, width = weights[f"{FIRST}weight"].shape
    head = nn.Sequential(nn.Linear(width, size), nn.GELU(), nn.Linear(size, 1))
    for place, prefix in ((0, FIRST), (2, SECOND)):
        head[place].load_state_dict({kind: weights[prefix + kind] for kind in ("weight", "bias")})
    return head
