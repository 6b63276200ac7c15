"""SigLIP's forward pass: texts of one length packed; images side by side."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sie_triton.checkpoints.image_processor import ImagePlan
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.engines.torch.encoder import TorchEncoder
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.tower import NaflexTower, VisionTower
from sie_triton.models.families.shared.towers.adapter import TowerAdapter, towers
from sie_triton.models.families.siglip import SiglipFiles


class SiglipAdapter(TowerAdapter):
    """SigLIP adapter. `head` projects a text's last state to its embedding."""

    def __init__(
        self,
        encoder: TorchEncoder,
        vision: VisionTower | NaflexTower,
        lengths: tuple[int, int],
        head: torch.nn.Module,
    ) -> None:
        super().__init__(encoder, vision, *lengths)
        self.vision = vision
        self._head = head

    def texts(self, input_ids: Ints, lengths: Ints) -> torch.Tensor:
        hidden = self.encoder.hidden_states(input_ids, lengths)
        of_text: torch.Tensor = self._head(hidden[torch.from_numpy(np.cumsum(lengths) - 1)])
        return of_text

    def images(self, pixels: npt.NDArray[np.uint8], shapes: Ints) -> torch.Tensor:
        return self.vision.vectors(pixels, shapes)


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> SiglipAdapter:
    files = SiglipFiles.read(directory)
    return adapter_of(towers(files.directory, engine), files, engine)


def adapter_of(model: Any, files: SiglipFiles, engine: TorchEngine) -> SiglipAdapter:
    """Return the adapter for transformers' model, with its weights loaded."""
    encoder = engine.encoder(model.text_model)
    engine.settle(encoder, "texts", files.texts.length)
    vision: VisionTower | NaflexTower
    if isinstance(files.plan, ImagePlan):
        vision = VisionTower(model.vision_model, files.plan)
    else:
        vision = NaflexTower(model.vision_model, files.plan)
    engine.prepared(vision)
    return SiglipAdapter(encoder, vision, (files.texts.length, files.num_patches), model.text_model.head)
