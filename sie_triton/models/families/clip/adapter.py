"""CLIP's forward pass: texts packed, images of one size side by side."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sie_triton.checkpoints.towers import TowerFiles
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.engines.torch.encoder import TorchEncoder, num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.tower import VisionTower
from sie_triton.models.families.shared.towers.adapter import TowerAdapter, towers


class ClipAdapter(TowerAdapter):
    """CLIP adapter. `closing` is the token whose state stands for the text; None is the token with the largest id."""

    def __init__(
        self,
        encoder: TorchEncoder,
        vision: VisionTower,
        lengths: tuple[int, int],
        projections: tuple[torch.nn.Module, torch.nn.Module],
        closing: int | None,
    ) -> None:
        super().__init__(encoder, vision, *lengths)
        self.vision = vision
        self._text_projection, self._image_projection = projections
        self._closing = closing
        self.weights_bytes += sum(map(num_bytes, projections))

    def texts(self, input_ids: Ints, lengths: Ints) -> torch.Tensor:
        hidden = self.encoder.hidden_states(input_ids, lengths)
        starts = np.cumsum(lengths) - lengths
        ids = np.split(input_ids, starts[1:])
        ends = [int((each if self._closing is None else each == self._closing).argmax()) for each in ids]
        of_text: torch.Tensor = self._text_projection(hidden[torch.from_numpy(starts + ends)])
        return of_text

    def images(self, pixels: npt.NDArray[np.uint8], shapes: Ints) -> torch.Tensor:
        of_image: torch.Tensor = self._image_projection(self.vision(pixels).pooler_output)
        return of_image


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> ClipAdapter:
    files = TowerFiles.read(directory)
    model: Any = towers(files.directory, engine)
    encoder = engine.encoder(model.text_model)
    engine.settle(encoder, "texts", files.longest_text)
    vision = engine.prepared(VisionTower(model.vision_model, files.plan))
    closing = int(model.config.text_config.eos_token_id)
    return ClipAdapter(
        encoder,
        vision,
        (files.longest_text, 1 + files.num_patches),
        (model.text_projection, model.visual_projection),
        # Configurations from transformers before 4.31 name 2 as the closing token, which is wrong.
        None if closing == 2 else closing,
    )
