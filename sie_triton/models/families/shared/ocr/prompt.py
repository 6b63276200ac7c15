"""A page and a prompt → the tokens of a conversation, with a token for each state of the image."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.contract import Features, Part
from sie_triton.contract.spec import ModelSpec
from sie_triton.errors import BusyError, InputError, LoadError
from sie_triton.models.families.shared.images import PreparedImage
from sie_triton.models.families.shared.pages import PAGE
from sie_triton.models.families.shared.pages.processor import PATCHES_PER_TOKEN
from sie_triton.models.families.shared.readers.processor import (
    ReaderProcessor,
    ReadingPrompt,
    check_instruction,
    new_tokens,
    num_beams,
)
from sie_triton.models.inputs.chat_template import ChatTemplate, Message
from sie_triton.models.inputs.patch_resizing import resized_to
from sie_triton.models.inputs.tokenizer import open_tokenizer

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of images."""

    size: Callable[[int, int], tuple[int, int]]  # height and width → those that the model reads
    counts: Callable[[int, int], tuple[int, int]]  # these → numbers of patches and of tokens
    resample: int  # Pillow's filter


class OcrProcessor(ReaderProcessor):
    """Processor of pages with prompts. `usual` is the default of max_new_tokens."""

    def __init__(self, files: PageFiles, sizes: Sizes, usual: int, spec: ModelSpec) -> None:
        super().__init__(open_tokenizer(files.directory), spec.runtime)
        self._template, self._sizes, self._usual = ChatTemplate.read(files.directory), sizes, usual
        self._image_token, self._longest = files.image_token, min(spec.max_sequence_length, files.longest)
        self._check()

    @abstractmethod
    def conversation(self, part: Part) -> tuple[Sequence[Message], int]:
        """Return a conversation with one image, and the number of its task; raise InputError for a wrong parameter."""

    def frame(self, part: Part) -> ReadingPrompt:
        check_instruction(part)
        messages, number = self.conversation(part)
        try:
            text = self._template.text(messages)
        except InputError as exc:
            raise InputError.at("parameter instruction", str(exc)) from exc
        ids = self._tokens(text)
        if ids.count(self._image_token) != 1:
            token = self._tokenizer.id_to_token(self._image_token)
            raise InputError.at("parameter instruction", f"contains {token}, which stands for an image; leave it out")
        most = new_tokens(part, self._usual, self._longest - len(ids))
        return ReadingPrompt(ids, most, num_beams(part.options), number)

    def pixels(self, picture: "Image", where: str) -> npt.NDArray[np.uint8]:
        size = self._sizes.size(picture.height, picture.width)
        if not self._sizes.counts(*size)[1]:
            given = f"has {picture.width} × {picture.height} pixels, too few for the model to read"
            raise InputError.at(where, f"{given}; send a larger image")
        return resized_to(picture, size, self._sizes.resample)

    def image_length(self, pixels: npt.NDArray[np.uint8]) -> int:
        return self._sizes.counts(*pixels.shape[:2])[0] // PATCHES_PER_TOKEN

    def complete_prompt(self, picture: PreparedImage, prompt: ReadingPrompt) -> ReadingPrompt:
        _, count = self._sizes.counts(*picture.pixels.shape[:2])
        place = prompt.ids.index(self._image_token)
        ids = [*prompt.ids[:place], *[self._image_token] * count, *prompt.ids[place + 1 :]]
        # The model never reads the last token that it generates.
        room = self._longest + 1 - len(ids)
        if room < 1:
            problem = f"takes {count} of the {self._longest} tokens that the model reads"
            raise InputError.at(picture.where, f"{problem}, which leaves no room for an answer; send a smaller image")
        return replace(prompt, ids=ids, new_tokens=min(prompt.new_tokens, room))

    def page(self) -> Features:
        """Return the features of one white page with the default prompt."""
        white = np.full((*self._sizes.size(*PAGE), 3), 255, np.uint8)
        return self.encode([self.frame(Part("image", [])).around(PreparedImage(white, *PAGE, "image"))])

    def _tokens(self, text: str) -> list[int]:
        bos = self._template.special.get("bos_token")
        is_whole = bos is not None and text.startswith(bos)
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=not is_whole).ids
        return found

    def _check(self) -> None:
        """Raise LoadError if the chat template does not write the image token."""
        where = self._template.where
        try:
            messages, _ = self.conversation(Part("image", []))
            ids = self._tokens(self._template.text(messages))
        except InputError as exc:
            raise LoadError(f"{where}: {exc}", "unsupported") from exc
        except BusyError as exc:
            raise LoadError(f"{where}: {exc}") from exc
        if ids.count(self._image_token) != 1:
            message = (
                f"{where}: must write the token {self._image_token}, which stands for an image in config.json, "
                "exactly once"
            )
            raise LoadError(message, "unsupported")
