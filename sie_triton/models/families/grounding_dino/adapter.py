"""Grounding DINO's forward pass: images of the same size and with the same labels, side by side.

Other images are computed by themselves, since padding in a batch would change the results.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from sie_triton.contract import Batch, Features, ParameterValue, Ragged, Rows
from sie_triton.contract.arrays import Floats, Ints
from sie_triton.contract.spec import AUTO, ModelSpec
from sie_triton.contract.tensors import (
    IMAGE_SIZES,
    INPUT_IDS,
    LABEL_THRESHOLDS,
    LENGTHS,
    ORIGINAL_SIZES,
    PIXEL_LENGTHS,
    PIXELS,
    READ,
)
from sie_triton.engines.base import Encoder
from sie_triton.engines.torch.attention.kernels import possible
from sie_triton.engines.torch.attention.library import check_supported, library_attention
from sie_triton.engines.torch.encoder import load_model, num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.prepack import own_pages
from sie_triton.engines.torch.process import keep_freed_pages
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.grounding_dino import (
    BOX_THRESHOLD,
    TEXT_THRESHOLD,
    TOKEN_LABELS,
    USUAL_SCORE,
    USUAL_TEXT_SCORE,
    DinoFiles,
    Text,
    num_read,
)
from sie_triton.models.families.shared.labels.words import pieces_of
from sie_triton.models.families.shared.objects import Detections, corners, tensors
from sie_triton.models.families.shared.thresholds import least_scores
from sie_triton.models.inputs.features import copies


class DinoAdapter(Adapter):
    """Grounding DINO adapter.

    `model` is the library's, in float32. If `dtype` differs, autocast chooses which operations use it.
    """

    def __init__(self, files: DinoFiles, model: Any, dtype: torch.dtype) -> None:
        shorter, longer = files.largest
        limits = {
            READ.name: num_read(shorter, longer),
            PIXEL_LENGTHS.name: 3 * shorter * longer,
            # An image that is not resized may be a little longer.
            IMAGE_SIZES.name: 2 * longer,
            INPUT_IDS.name: int(model.config.text_config.vocab_size) - 1,
            LENGTHS.name: files.longest_text,
            TOKEN_LABELS.name: files.longest_text,
        }
        super().__init__(Encoder(), limits=limits)
        self.weights_bytes = num_bytes(model)
        height, width = files.plan.resizing.size(1500, 2000)
        self.sample = partial(copies, sample_image(height, width), num_read(height, width))
        self._files, self._model, self._dtype = files, model, dtype
        self._device = next(model.parameters()).device
        mean, std = (
            torch.tensor(each, device=self._device)[:, None, None] for each in (files.plan.mean, files.plan.std)
        )
        self._scale, self._offset = files.plan.scale / std, mean / std

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        images, sizes = pieces_of(batch, PIXELS.name), batch.features[IMAGE_SIZES.name].values
        if any(len(image) != 3 * height * width for image, (height, width) in zip(images, sizes.tolist(), strict=True)):
            raise ValueError(f"{PIXELS.name}: an image must have three bytes for each of its pixels")
        texts = texts_of(batch)
        seen: dict[int, Detections] = {}
        for items in together(texts, sizes):
            logits, boxes = self._logits_and_boxes([images[item] for item in items], sizes[items[0]], texts[items[0]])
            for item, of_places, of_boxes in zip(items, logits, boxes, strict=True):
                size, options = batch.features[ORIGINAL_SIZES.name].values[item], batch.options[item]
                seen[item] = _seen(of_places, of_boxes, texts[item], size, options)
        return tensors([seen[item] for item in range(len(texts))])

    def _logits_and_boxes(
        self, images: Sequence[npt.NDArray[np.uint8]], size: Ints, text: Text
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return logits [images, places, tokens] and boxes [images, places, 4]."""
        pixels = torch.from_numpy(np.stack(images)).to(self._device).view(len(images), *size.tolist(), 3)
        ids = torch.from_numpy(text.ids.astype(np.int64)).to(self._device).expand(len(images), -1)
        with torch.autocast(self._device.type, self._dtype, enabled=self._dtype != torch.float32):
            values = pixels.permute(0, 3, 1, 2).float() * self._scale - self._offset
            found = self._model(pixel_values=values.contiguous(), input_ids=ids)
        logits = found.logits[..., : len(text.ids)]
        return logits.float().cpu().numpy(), found.pred_boxes.float().cpu().numpy()


def sample_image(height: int, width: int) -> Features:
    """Return the features of an image with a label of one word, for measuring."""
    return {
        READ.name: Ragged(np.array([num_read(height, width)], np.int32)),
        PIXELS.name: Ragged.of([np.zeros(3 * height * width, np.uint8)]),
        IMAGE_SIZES.name: Ragged(np.array([[height, width]], np.int32)),
        ORIGINAL_SIZES.name: Ragged(np.array([[height, width]], np.int32)),
        INPUT_IDS.name: Ragged.of([np.array([101, 4937, 1012, 102], np.int32)]),
        TOKEN_LABELS.name: Ragged.of([np.array([0, 1, 0, 0], np.int32)]),
        LABEL_THRESHOLDS.name: Ragged.of([np.ones(1, np.float32)]),
    }


def texts_of(batch: Batch) -> list[Text]:
    """Return the labels' text for each image."""
    names = INPUT_IDS.name, TOKEN_LABELS.name, LABEL_THRESHOLDS.name
    texts = [Text(*each) for each in zip(*(pieces_of(batch, name) for name in names), strict=True)]
    for text in texts:
        if not np.array_equal(np.unique(text.labels[text.labels > 0]), np.arange(1, len(text.thresholds) + 1)):
            raise ValueError(f"{TOKEN_LABELS.name}: must be numbers from 1 on, each label's at least once")
    return texts


def together(texts: Sequence[Text], sizes: Ints) -> list[list[int]]:
    """Group items that can go through the model together."""
    groups: dict[tuple[bytes, bytes], list[int]] = {}
    for item, (text, size) in enumerate(zip(texts, sizes, strict=True)):
        groups.setdefault((text.ids.tobytes(), size.tobytes()), []).append(item)
    return list(groups.values())


def _seen(
    logits: npt.NDArray[np.float32],
    boxes: npt.NDArray[np.float32],
    text: Text,
    size: Ints,
    options: Mapping[str, ParameterValue],
) -> Detections:
    scores = torch.from_numpy(logits).sigmoid().numpy()
    which = labels_of(scores, text.ids, text.labels, float(options.get(TEXT_THRESHOLD.name, USUAL_TEXT_SCORE)))
    least = least_scores(text.thresholds, options, float(options.get(BOX_THRESHOLD.name, USUAL_SCORE)))
    best = scores.max(1)
    # NaN is kept too: an answer with it is an error, an empty one would look right.
    kept = ~(best <= least[which])
    height, width = size.tolist()
    return Detections(corners(boxes[kept], width, height), which[kept].astype(np.int32), best[kept])


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> DinoAdapter:
    files = DinoFiles.read(directory)
    auto = transformers.AutoModelForZeroShotObjectDetection
    # Boxes are refined step by step, and half precision would lose too much.
    model: Any = load_model(directory, torch.float32, engine.device, auto)
    backend = possible(spec.runtime.attention_backend, torch.device(engine.device), torch.float32)
    if backend != AUTO:
        check_supported(model, backend)
    # Only BERT's plainest attention adds the mask that keeps labels apart.
    for backbone in (model.model.text_backbone, model.model.backbone.conv_encoder.model):
        backbone.set_attn_implementation(library_attention(backbone, backend))
    if engine.device == "cpu":
        # Otherwise a quarter of the time goes into page faults. Repacking the layers would gain nothing more.
        keep_freed_pages()
        own_pages(model)
    return DinoAdapter(files, model, engine.dtype)


def labels_of(scores: Floats, ids: Ints, labels: Ints, least: float) -> npt.NDArray[np.int64]:
    """Return the number of each box's label, from 0: [boxes].

    scores [boxes, tokens], ids [tokens]; labels [tokens] are numbers from 1, 0 for tokens of no label. The words that
    score more than `least` are the box's phrase. The label is the one with the largest share of its words in the
    phrase, then the one with most words in it, then the first. If the phrase has no word of any label, it is the label
    of the best word.
    """
    scores, numbers = scores[:, labels > 0], labels[labels > 0] - 1
    words, which = np.unique(ids[labels > 0], return_inverse=True)
    in_phrase = np.zeros((len(scores), len(words)), np.bool_)
    of_labels = np.zeros((len(words), int(numbers.max()) + 1))
    for token, (word, number) in enumerate(zip(which, numbers, strict=True)):
        in_phrase[:, word] |= scores[:, token] > least
        of_labels[word, number] += 1
    found = in_phrase @ of_labels
    # Less than any difference between two shares of words decides between equal shares.
    rank = found / of_labels.sum(0) + 1e-9 * found
    return np.where(found.any(1), rank.argmax(1), numbers[scores.argmax(1)])
