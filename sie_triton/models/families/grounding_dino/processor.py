"""Images → pixels, in many sizes; labels → one text, and the label of each of its tokens. No torch."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sie_triton.contract import Features, Label, Ragged
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.contract.tensors import INPUT_IDS, LABEL_THRESHOLDS, READ
from sie_triton.errors import InputError
from sie_triton.models.families.grounding_dino import TOKEN_LABELS, DinoFiles, num_read
from sie_triton.models.families.shared.images import original_sizes
from sie_triton.models.families.shared.labels.ids import thresholds_of
from sie_triton.models.families.shared.labels.images import LabelledImages
from sie_triton.models.inputs.pixels import packed_pixels
from sie_triton.models.inputs.tokenizer import open_tokenizer

if TYPE_CHECKING:
    from PIL.Image import Image

WORD = re.compile(r"\w")


class Text(NamedTuple):
    """The text of all labels: `ids` and `labels` int32 [tokens], `thresholds` float32 [labels]."""

    ids: Ints
    labels: Ints
    thresholds: npt.NDArray[np.float32]


class DinoProcessor(LabelledImages[Text]):
    """Processor for texts of the form: label. label. …"""

    def __init__(self, files: DinoFiles, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._files = files
        self._tokenizer = open_tokenizer(files.directory)
        self._tokenizer.no_truncation()

    def prompt(self, labels: tuple[Label, ...], template: str) -> Text:
        texts = [f"{label.read.strip().lower()}." for label in labels]
        encoding = self._tokenizer.encode(" ".join(texts))
        if len(encoding.ids) > self._files.longest_text:
            raise InputError.at(
                "labels",
                f"have {len(encoding.ids)} tokens; this model reads at most {self._files.longest_text} for "
                "all labels of a request; send fewer or shorter labels",
            )
        whole = " ".join(texts)
        ends = np.cumsum([len(text) + 1 for text in texts]) - 1
        numbers = [
            1 + int(np.searchsorted(ends, start, side="right")) if WORD.search(whole[start:end]) else 0
            for start, end in encoding.offsets
        ]
        for number, label in enumerate(labels, 1):
            if number not in numbers:
                raise InputError.at(
                    "labels", f"{label.read[:80]!r} contains no word that this model reads; send another"
                )
        return Text(np.array(encoding.ids, np.int32), np.array(numbers, np.int32), thresholds_of(labels))

    def pixels(self, image: "Image", where: str) -> Any:
        height, width = self._files.plan.resizing.size(image.height, image.width)
        if self._files.num_places(height, width) < self._files.num_queries:
            raise InputError.at(
                where,
                f"has {image.width} × {image.height} pixels, resized to {width} × {height}, which is too "
                f"narrow for the model's {self._files.num_queries} places; send a less narrow image",
            )
        return np.asarray(image.resize((width, height), resample=self._files.plan.resample))

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        texts, pictures = zip(*framed, strict=True)
        return {
            READ.name: Ragged(np.array([num_read(*picture.pixels.shape[:2]) for picture in pictures], np.int32)),
            **packed_pixels([picture.pixels for picture in pictures]),
            **original_sizes(pictures),
            INPUT_IDS.name: Ragged.of([text.ids for text in texts]),
            TOKEN_LABELS.name: Ragged.of([text.labels for text in texts]),
            LABEL_THRESHOLDS.name: Ragged.of([text.thresholds for text in texts]),
        }


def load_processor(spec: ModelSpec, directory: Path) -> DinoProcessor:
    return DinoProcessor(DinoFiles.read(directory), spec.runtime)
