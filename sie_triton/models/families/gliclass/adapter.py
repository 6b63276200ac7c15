"""GLiClass's forward pass: labels and texts in one packed pass, then a logit for each label of a row."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import LABEL_LENGTHS, LABEL_THRESHOLDS, LABEL_TOKENS
from sie_triton.engines.torch.checkpoint import Checkpoint
from sie_triton.engines.torch.encoder import TorchEncoder, num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.models.families.gliclass import SEPARATOR, GliclassFiles
from sie_triton.models.families.gliclass.heads import ACTIVATIONS, POOLINGS, SCORERS, Projector
from sie_triton.models.families.shared.classes import CLASS_LOGITS, SCORING, is_multi
from sie_triton.models.families.shared.labels.words import pieces_of
from sie_triton.models.families.shared.token_batch import TokenAdapter, tokens


class GliclassAdapter(TokenAdapter):
    """GLiClass adapter. `scale` multiplies the logits of normalized features.

    By default several labels may apply to one text, as in gliclass.
    """

    def __init__(self, encoder: TorchEncoder, parts: nn.ModuleDict, files: GliclassFiles, scale: float) -> None:
        super().__init__(encoder)
        self._parts, self._files, self._scale = parts, files, scale
        self.weights_bytes += num_bytes(parts)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        input_ids, lengths = tokens(batch)
        hidden = torch.split(self.encoder.hidden_states(input_ids, lengths), lengths.tolist())
        separators, places = batch.features[SEPARATOR.name].values.tolist(), pieces_of(batch, LABEL_TOKENS.name)
        labels = [self._labels(*row) for row in zip(hidden, places, separators, strict=True)]
        texts = torch.stack([self._text(*row) for row in zip(hidden, separators, strict=True)])
        thresholds, counts = batch.features[LABEL_THRESHOLDS.name]
        assert counts is not None
        rows = torch.from_numpy(np.repeat(np.arange(len(counts)), counts)).to(texts.device)
        logits = self._logits(texts, torch.cat(labels), rows).float().cpu().numpy()
        multi = [is_multi(options, True) for options in batch.options or [{}] * len(counts)]
        return {
            CLASS_LOGITS.name: logits,
            CLASS_LOGITS.lengths: counts,
            LABEL_THRESHOLDS.name: thresholds,
            LABEL_LENGTHS.name: counts,
            SCORING.name: np.array(multi, np.int32),
        }

    def _logits(self, texts: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        texts, labels = self._parts["text"](texts), self._parts["labels"](labels)
        if self._files.normalizes:
            texts, labels = (each / (each.norm(dim=-1, keepdim=True) + 1e-8) for each in (texts, labels))
        logits: torch.Tensor = self._parts["scorer"](texts, labels, rows)
        return logits * self._scale if self._files.normalizes else logits

    def _labels(self, states: torch.Tensor, places: npt.NDArray[np.int32], separator: int) -> torch.Tensor:
        """Return a state for each label, [labels, d]."""
        files = self._files
        if separator >= len(states) or (places >= separator).any():
            raise ValueError(f"{LABEL_TOKENS.name}: names tokens after the separator")
        first = places + (not files.embeds_marker)
        if not files.averages_labels:
            return states[first]
        ends = [*places[1:].tolist(), separator if files.reads_text_alone else len(states)]
        spans = [states[start:end] for start, end in zip(first.tolist(), ends, strict=True)]
        return torch.stack([span.sum(0) / max(1, len(span)) for span in spans])

    def _text(self, states: torch.Tensor, separator: int) -> torch.Tensor:
        """Return the state of the text, [d]."""
        if self._files.reads_text_alone:
            # As in gliclass: moved to the front, and padded with zeros.
            states = torch.cat([states[separator:], torch.zeros_like(states[:separator])])
        return POOLINGS[self._files.pooling](states)


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> GliclassAdapter:
    files = GliclassFiles.read(directory)
    if files.activation not in ACTIVATIONS:
        raise files.config.unserved(f"projector_hidden_act {files.activation} is unknown")
    weights = Checkpoint(directory, engine.dtype, engine.device)
    encoder = engine.encoder(engine.load_part(files.encoder.values, weights, "model.encoder_model."))
    engine.settle(encoder)
    width, size = int(encoder.config.hidden_size), files.hidden_size
    parts = nn.ModuleDict(
        {
            "text": weights.fill(Projector(width, size, files.activation), "model.text_projector."),
            "labels": weights.fill(Projector(width, size, files.activation), "model.classes_projector."),
            "scorer": weights.fill(SCORERS[files.scorer](size), "model.scorer."),
        }
    )
    scale = weights.below("model.logit_scale").get("")
    return GliclassAdapter(encoder, parts, files, 1.0 if scale is None else float(scale))
