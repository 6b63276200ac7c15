"""Images → numbers finer than bytes, as in transformers' processor; labels → tokens of each. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sie_triton.contract import Features, Label, Part, Ragged
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.contract.tensors import READ
from sie_triton.errors import InputError
from sie_triton.models.families.owlv2 import FINE_PIXELS, FINE_STEPS, TEMPLATE, USUAL_TEMPLATE, OwlFiles
from sie_triton.models.families.owlv2.resizing import in_square
from sie_triton.models.families.shared.images import original_sizes
from sie_triton.models.families.shared.labels.ids import Labels, label_ids, labels_of
from sie_triton.models.families.shared.labels.images import LabelledImages
from sie_triton.models.inputs.pixels import resized
from sie_triton.models.inputs.tokenizer import open_tokenizer

if TYPE_CHECKING:
    from PIL.Image import Image


class OwlProcessor(LabelledImages[Labels]):
    def __init__(self, files: OwlFiles, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._files = files
        self._tokenizer = open_tokenizer(files.directory)
        self._tokenizer.no_truncation()

    def template(self, part: Part) -> str:
        template = str(part.options.get(TEMPLATE.name, USUAL_TEMPLATE))
        if "{}" not in template:
            problem = f"must contain {{}} in place of the label (given {template[:80]!r})"
            raise InputError.at(f"parameter {TEMPLATE.name}", problem)
        return template

    def prompt(self, labels: tuple[Label, ...], template: str) -> Labels:
        texts = [template.replace("{}", label.read.lower()) for label in labels]
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]
        longest = self._files.longest_text
        for label, of_label in zip(labels, ids, strict=True):
            if len(of_label) > longest:
                raise InputError.at(
                    "labels",
                    f"{label.read[:80]!r} has {len(of_label)} tokens, as {template[:80]!r}; "
                    f"this model reads at most {longest} for each label; send shorter labels",
                )
        return labels_of(labels, ids)

    def pixels(self, image: "Image", where: str) -> Any:
        if not self._files.pads_to_square:
            return resized(image, self._files.plan).astype(np.int16) * np.int16(FINE_STEPS)
        return np.rint(in_square(np.asarray(image), self._files.plan.shape) * FINE_STEPS).astype(np.int16)

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        labels, pictures = zip(*framed, strict=True)
        return {
            # One more for the token of the whole image.
            READ.name: Ragged(np.full(len(framed), self._files.num_patches + 1, np.int32)),
            FINE_PIXELS.name: Ragged.of([picture.pixels.reshape(-1) for picture in pictures]),
            **original_sizes(pictures),
            **label_ids(labels),
        }


def load_processor(spec: ModelSpec, directory: Path) -> OwlProcessor:
    return OwlProcessor(OwlFiles.read(directory), spec.runtime)
