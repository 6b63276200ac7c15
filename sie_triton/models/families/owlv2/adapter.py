"""OWLv2's forward pass: images side by side, labels read once, and each image scored with its own labels."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from sie_triton.contract import Batch, ParameterValue, Ragged, Rows
from sie_triton.contract.arrays import item_lengths
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import LABEL_THRESHOLDS, ORIGINAL_SIZES, PIXEL_LENGTHS, READ
from sie_triton.engines.torch.encoder import TorchEncoder, num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.tower import VisionTower
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.owlv2 import FINE_PIXELS, FINE_STEPS, SCORE_THRESHOLD, USUAL_SCORE, OwlFiles
from sie_triton.models.families.shared.labels.cache import LabelReader, LabelStates
from sie_triton.models.families.shared.labels.ids import LABEL_IDS, LABEL_SIZES, Labels, label_ids
from sie_triton.models.families.shared.labels.words import pieces_of
from sie_triton.models.families.shared.objects import Detections, corners, tensors
from sie_triton.models.families.shared.thresholds import least_scores
from sie_triton.models.inputs.features import copies

# Number of labels for images that are measured.
SAMPLE_LABELS = 4


class OwlAdapter(LabelReader, Adapter):
    """OWL adapter. `model` is the library's; its layers after the towers are computed in float32."""

    encoder: TorchEncoder

    def __init__(self, files: OwlFiles, encoder: TorchEncoder, vision: VisionTower, model: Any) -> None:
        limits = {
            READ.name: files.num_patches + 1,
            PIXEL_LENGTHS.name: vision.image_bytes,
            LABEL_IDS.name: encoder.vocab_size - 1,
            LABEL_SIZES.name: files.longest_text,
        }
        super().__init__(encoder, limits=limits)
        towers = getattr(model, model.base_model_prefix)
        self.kept = LabelStates()
        # The states of labels are cached after the first pass.
        ones = np.ones(SAMPLE_LABELS, np.int32)
        labels = Labels(np.arange(1, SAMPLE_LABELS + 1, dtype=np.int32), ones, np.full(SAMPLE_LABELS, 1, np.float32))
        image = {
            READ.name: Ragged(np.array([files.num_patches + 1], np.int32)),
            FINE_PIXELS.name: Ragged.of([np.zeros(vision.image_bytes, np.int16)]),
            ORIGINAL_SIZES.name: Ragged(np.array([[1000, 1000]], np.int32)),
            **label_ids([labels]),
        }
        self.sample = partial(copies, image, files.num_patches + 1)
        self._files, self._vision = files, vision
        self._projection, self._norm = towers.text_projection, towers.vision_model.post_layernorm
        self._merged_norm, self._class_head, self._box_head = (
            head.float() for head in (model.layer_norm, model.class_head, model.box_head)
        )
        side = round(files.num_patches**0.5)
        self._box_bias = model.compute_box_bias(side, side).to(vision.device, torch.float32)
        heads = (self._projection, self._merged_norm, self._class_head, self._box_head)
        self.weights_bytes += vision.weights_bytes + sum(map(num_bytes, heads))

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        pixels, lengths = batch.features[FINE_PIXELS.name]
        if np.any(lengths != self._vision.image_bytes):
            raise ValueError(f"{FINE_PIXELS.name}: an image must have {self._vision.image_bytes} numbers")
        patches = self._patches(pixels)
        boxes = torch.sigmoid(self._box_head(patches) + self._box_bias).cpu().numpy()
        thresholds = pieces_of(batch, LABEL_THRESHOLDS.name)
        sizes = batch.features[ORIGINAL_SIZES.name].values
        of_items = zip(patches, boxes, self.labels_of(batch), thresholds, sizes, batch.options, strict=True)
        return tensors([self._seen(*each) for each in of_items])

    def _patches(self, pixels: npt.NDArray[np.int16]) -> torch.Tensor:
        """Return [images, patches, d] float32, each patch multiplied by the state of the whole image."""
        states = self._norm(self._vision(pixels).last_hidden_state).float()
        merged: torch.Tensor = self._merged_norm(states[:, 1:] * states[:, :1])
        return merged

    def _seen(
        self,
        patches: torch.Tensor,
        boxes: npt.NDArray[np.float32],
        labels: torch.Tensor,
        thresholds: npt.NDArray[np.float32],
        size: npt.NDArray[np.int32],
        options: Mapping[str, ParameterValue],
    ) -> Detections:
        logits, _ = self._class_head(patches[None], labels[None], None)
        best = logits[0].max(-1)
        scores, which = best.values.sigmoid().cpu().numpy(), best.indices.cpu().numpy()
        least = least_scores(thresholds, options, float(options.get(SCORE_THRESHOLD.name, USUAL_SCORE)))
        # NaN is kept too: an answer with it is an error, an empty one would look right.
        kept = ~(scores <= least[which])
        height, width = size.tolist()
        if self._files.pads_to_square:
            height = width = max(height, width)
        return Detections(corners(boxes[kept], width, height), which[kept], scores[kept])

    def _encoded(self, labels: Sequence[bytes]) -> list[torch.Tensor]:
        ids = [np.frombuffer(label, np.int32) for label in labels]
        lengths = item_lengths(ids)
        hidden = self.encoder.hidden_states(np.concatenate(ids), lengths)
        # The closing token has the largest id.
        closing = np.cumsum(lengths) - lengths + [int(each.argmax()) for each in ids]
        states = self._projection(hidden[torch.from_numpy(closing)]).float()
        states = states / states.norm(dim=-1, keepdim=True)
        return [state.clone() for state in states]


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> OwlAdapter:
    files = OwlFiles.read(directory)
    model: Any = engine.load(directory, transformers.AutoModelForZeroShotObjectDetection)
    towers = getattr(model, model.base_model_prefix)
    encoder = engine.encoder(towers.text_model)
    engine.settle(encoder, "labels", files.longest_text)
    plan = replace(files.plan, scale=files.plan.scale / FINE_STEPS)
    return OwlAdapter(files, encoder, engine.prepared(VisionTower(towers.vision_model, plan)), model)
