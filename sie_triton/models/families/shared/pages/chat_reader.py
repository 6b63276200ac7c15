"""Conversations with images → tokens and pixels. No torch."""

import unicodedata
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract import Features
from sie_triton.contract.spec import Runtime
from sie_triton.contract.tensors import IMAGE, TEXT
from sie_triton.errors import InputError, LoadError
from sie_triton.models.families.shared.pages import PAGE
from sie_triton.models.families.shared.pages.processor import PATCHES_PER_TOKEN, whole_tokenizer
from sie_triton.models.inputs.base import Processor
from sie_triton.models.inputs.cutting import beginning
from sie_triton.models.inputs.images import ImageFile, ImageReader
from sie_triton.models.inputs.patch_resizing import patched_size, resized_for_patches
from sie_triton.models.inputs.pixels import Bytes

# The form of Qwen's chat templates.
USER = "<|im_start|>user\n"
BEFORE = f"<|im_start|>system\n{{}}<|im_end|>\n{USER}"
AFTER = "<|im_end|>\n<|im_start|>assistant\n"
IMAGE_TOKEN = "<|image_pad|>"  # noqa: S105
PICTURE = f"<|vision_start|>{IMAGE_TOKEN}<|vision_end|>"


class ChatReader:
    """Tokenizer of conversations. Limits them to `longest` tokens, never by truncating images.

    `kept` is the end of each conversation, which truncation keeps.
    """

    def __init__(self, files: PageFiles, plan: PatchPlan, longest: int, runtime: Runtime, kept: str = AFTER) -> None:
        self.plan = plan
        self._tokenizer = whole_tokenizer(files.directory)
        self._longest, self._image_token = longest, files.image_token
        self._images = ImageReader(runtime)
        self._num_after = len(self._tokenizer.encode(kept).ids)
        if self._tokenizer.encode(PICTURE, add_special_tokens=False).ids.count(files.image_token) != 1:
            message = (
                f"{files.directory}: {PICTURE} must contain the token {files.image_token}, which stands for an image, "
                "exactly once"
            )
            raise LoadError(message, "unsupported")

    def prepared(self, item: Any) -> Any:
        """Return the item with its image resized for the model; raise InputError naming the image."""
        image = item.get(IMAGE.name)
        if not isinstance(image, ImageFile):
            return item
        check_text(item.get(TEXT.name, ""), image.where, "the text beside it ")
        with self._images.opened(image) as picture:
            return {**item, IMAGE.name: resized_for_patches(picture, self.plan)}

    def beginning(self, text: str) -> str:
        """Return the beginning of `text` that covers the tokens that the model reads; Unreadable if it is too long."""
        return beginning(self._tokenizer, text, self._longest)

    def tokens(
        self,
        conversations: Sequence[str],
        images: Sequence[Sequence[Bytes]],
        longest: Sequence[int | None] | None = None,
    ) -> tuple[list[list[int]], list[bool]]:
        """Return the tokens of each conversation, and whether it was truncated.

        PICTURE in a conversation stands for each of its images. `longest` may lower the limit of each conversation.
        """
        limits = [min(self._longest, limit or self._longest) for limit in longest or [None] * len(conversations)]
        encodings = self._tokenizer.encode_batch_fast(list(conversations))
        made = [self._tokens(each.ids, of, most) for each, of, most in zip(encodings, images, limits, strict=True)]
        return [ids for ids, _ in made], [is_cut for _, is_cut in made]

    def read(self, ids: Sequence[Sequence[int]], images: Sequence[Sequence[Bytes]]) -> Any:
        """Return the cost of each item, int32 [items], in tokens; patches count as tokens that take as long."""
        patches = [sum(self.plan.num_patches(*image.shape[:2]) for image in of) for of in images]
        return np.array([len(of) + num // PATCHES_PER_TOKEN for of, num in zip(ids, patches, strict=True)], np.int32)

    def _tokens(self, ids: list[int], images: Sequence[Bytes], longest: int) -> tuple[list[int], bool]:
        counts = [self.plan.num_tokens(*image.shape[:2]) for image in images]
        places = [place for place, token in enumerate(ids) if token == self._image_token] if images else []
        # The first tokens that remain: at least those up to the end of the last image.
        kept = max(places[-1] + 2 if places else 0, longest - (sum(counts) - len(counts)) - self._num_after)
        end = max(kept, len(ids) - self._num_after)
        whole = ids[:kept] + ids[end:]
        for place, count in zip(reversed(places), reversed(counts), strict=True):
            whole[place : place + 1] = [self._image_token] * count
        return whole, end > kept


class ConversationProcessor(Processor):
    """Base of processors that write conversations with images."""

    def __init__(self, reader: ChatReader) -> None:
        self._reader = reader

    def prepare(self, element: Any) -> Any:
        return self._reader.prepared(element)

    @abstractmethod
    def page(self) -> Features:
        """Return the features of one white page; for measuring."""

    @property
    def white_page(self) -> Any:
        """An item that is one white page, prepared."""
        return {IMAGE.name: np.full((*patched_size(*PAGE, self._reader.plan), 3), 255, np.uint8)}


def check_text(text: str, field: str, what: str = "") -> None:
    """Raise InputError at `field` if the text contains the token that stands for an image; `what` names the text."""
    if IMAGE_TOKEN in text:
        raise InputError.at(field, f"{what}contains {IMAGE_TOKEN}, which stands for an image; leave it out")


def as_sentence(instruction: str) -> str:
    """Append a full stop if the text does not end in punctuation, as in training.

    >>> as_sentence(" Find it "), as_sentence("Find it!"), as_sentence(" ")
    ('Find it.', 'Find it!', '')
    """
    told = instruction.strip()
    return told if not told or unicodedata.category(told[-1]).startswith("P") else f"{told}."
