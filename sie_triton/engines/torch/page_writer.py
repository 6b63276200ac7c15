"""A transformers model whose prompt contains an image of any size, and which generates the image's text.

Items of different sizes are batched: shorter prompts are padded on the left, which attention masks out.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from sie_triton.checkpoints.image_processor import Scaling
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract.arrays import Ints
from sie_triton.engines.torch.generate import StopAtDeadline, Writer
from sie_triton.engines.torch.patch_tower import cut
from sie_triton.errors import LoadError

Images = Sequence[npt.NDArray[np.uint8]]

# Options of generation_config.json that read the prompt, and so would see its padding, with their neutral values.
OF_THE_PROMPT = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0}


class PageWriter(Writer):
    """A model that generates the text of images. A prompt contains one `image_token` for each state of its image."""

    def __init__(self, model: PreTrainedModel, plan: Scaling, image_token: int) -> None:
        super().__init__(model)
        self.image_token = image_token
        self._scale = plan.scale
        self._mean, self._std = (torch.tensor(each, device=self.device) for each in (plan.mean, plan.std))
        config = self._model.generation_config
        # With do_sample=False, transformers warns about each option of sampling.
        for name in ("temperature", "top_p", "top_k", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"):
            setattr(config, name, None)
        config.do_sample = False
        self.pads = all(getattr(config, name, None) in (None, value) for name, value in OF_THE_PROMPT.items())
        self._pad = self._padding(config)

    @abstractmethod
    def image_inputs(self, images: Sequence[torch.Tensor], ids: torch.Tensor) -> Mapping[str, Any]:
        """Return the model's inputs for `images`, float [height, width, 3] each, and `ids`, int64 [items, tokens]."""

    @torch.inference_mode()
    def __call__(
        self, images: Images, prompts: Sequence[Ints], *, new_tokens: int, num_beams: int, deadline: StopAtDeadline
    ) -> list[list[int]]:
        """Return the generated tokens of each item, which may end with padding.

        `images` are uint8 [height, width, 3] each, `prompts` int32 [tokens] each.
        """
        width = max(map(len, prompts))
        ids = self._tensor(np.stack([np.pad(each, (width - len(each), 0)) for each in prompts]))
        behind = torch.tensor([[width - len(each)] for each in prompts], device=self.device)
        mask = torch.arange(width, device=self.device) >= behind
        inputs = {
            "input_ids": ids.where(mask, self._pad),
            "attention_mask": mask.long(),
            "pad_token_id": self._pad,
            **self.image_inputs([self._scaled(each) for each in images], ids),
        }
        return [row[width:] for row in self.write(inputs, new_tokens, num_beams, deadline)]

    def _padding(self, config: Any) -> int:
        """Return the padding token, chosen as transformers does; LoadError if the model has no such token."""
        ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        pad = next((each for each in (config.pad_token_id, *ends) if each is not None), 0)
        if not isinstance(pad, int) or not 0 <= pad < self.vocab_size:
            where = f"{self.config.name_or_path}/generation_config.json: pad_token_id, or else eos_token_id"
            raise LoadError(
                f"{where}: must be one of the model's {self.vocab_size} tokens (given {pad!r:.80})", "corrupt"
            )
        return pad

    def _scaled(self, image: npt.NDArray[np.uint8]) -> torch.Tensor:
        return (torch.from_numpy(image).to(self.device).float() * self._scale - self._mean) / self._std


class PatchWriter(PageWriter):
    """A PageWriter whose tower reads all images of a batch in one pass, as rows of patches, and keeps them separate.

    `merge` is the parameter of `cut`.
    """

    def __init__(self, model: PreTrainedModel, plan: PatchPlan, image_token: int, merge: int) -> None:
        super().__init__(model, plan, image_token)
        self._patch, self._merge = plan.patch, merge

    def patches(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the patches of pixels [height, width, 3], in the order that the tower reads."""
        return cut(pixels, self._patch, self._merge)

    def image_inputs(self, images: Sequence[torch.Tensor], ids: torch.Tensor) -> Mapping[str, Any]:
        grid = [[1, image.shape[0] // self._patch, image.shape[1] // self._patch] for image in images]
        return {
            "pixel_values": torch.cat([self.patches(image) for image in images]).to(self.dtype),
            "image_grid_thw": torch.tensor(grid, device=self.device),
            "mm_token_type_ids": (ids == self.image_token).int(),
        }
