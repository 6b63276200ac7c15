"""Nemotron ColEmbed VL v2: a page as an image, one vector for each of its tokens, those of the prompt included.

image, text → a conversation → tokens, and patches → Qwen3-VL → unit vectors
query       → a conversation → tokens              → Qwen3-VL → unit vectors

Qwen3-VL's layers attend in both directions here, and its final norm is not applied. The form of conversations is that
of the authors' own processor (nvidia/nemotron-colembed-vl-4b-v2), and so are the defaults of its settings.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from sie_triton.checkpoints.files import Fields
from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract import Features
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import IMAGE, TEXT
from sie_triton.models.families.shared.pages import PageFamily
from sie_triton.models.families.shared.pages.chat_reader import AFTER, PICTURE, USER, ChatReader, ConversationProcessor
from sie_triton.models.families.shared.text_or_image import packed


class NemoColEmbed(PageFamily):
    model_types = ("qwen3_vl_nemotron_embed",)
    usual_longest = 262_144
    reference_adapters = ("nemo_colembed:NemoColEmbedAdapter",)
    not_served: ClassVar = {
        "nvidia/llama-nemoretriever-colembed-3b-v1": "the layout of version 1 (SigLIP and Llama) is not public; "
        "version 2 is served: nvidia/nemotron-colembed-vl-4b-v2"
    }

    @classmethod
    def read(cls, directory: Path) -> PageFiles:
        files = super().read(directory)
        document = files.settings.integer("p_max_length", 4096, least=1)  # the default of the authors' processor
        return replace(files, dim=files.text.integer("hidden_size", least=1), longest=min(files.longest, document))

    def described(self, files: PageFiles) -> str:
        most = PatchPlan.read(files.directory, files.vision).max_tokens
        return f"{self.model_types[0]}, images of at most {most} tokens"


@dataclass(frozen=True, slots=True)
class Roles:
    """Settings of the authors' processor: the words before a query and a document, and a query's maximum tokens."""

    query: str
    document: str
    longest_query: int

    @classmethod
    def read(cls, settings: Fields) -> "Roles":
        return cls(
            settings.text("query_prefix", "query:"),
            settings.text("passage_prefix", "passage:"),
            settings.integer("q_max_length", 512, least=1),
        )


class NemoColEmbedProcessor(ConversationProcessor):
    """Processor that writes conversations. An item with an image is a document, whatever its role in the request."""

    has_roles = True

    def __init__(self, reader: ChatReader, roles: Roles) -> None:
        super().__init__(reader)
        self._roles = roles

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        images = [item.get(IMAGE.name) for item in framed]
        each = [[] if image is None else [image] for image in images]
        asks = [is_query and image is None for image in images]
        conversations = [self._conversation(item, is_asked) for item, is_asked in zip(framed, asks, strict=True)]
        longest = [self._roles.longest_query if is_asked else None for is_asked in asks]
        ids, cut = self._reader.tokens(conversations, each, longest)
        return packed(self._reader.read(ids, each), cut, ids, images)

    def page(self) -> Features:
        return self.encode([self.white_page])

    def _conversation(self, item: Any, is_query: bool) -> str:
        text = self._reader.beginning(item.get(TEXT.name, ""))
        if is_query:
            return f"{USER}Query: {prefixed(self._roles.query, text)}{AFTER}"
        seen = PICTURE if IMAGE.name in item else ""
        return f"{USER}{seen}{prefixed(self._roles.document, text)}{AFTER}"


def prefixed(prefix: str, text: str) -> str:
    """Write a prefix before a text.

    >>> prefixed("query:", "dogs"), prefixed("query:", ""), prefixed("", "dogs")
    ('query: dogs', 'query: ', 'dogs')
    """
    return f"{prefix} {text}" if prefix else text


def load_processor(spec: ModelSpec, directory: Path) -> NemoColEmbedProcessor:
    files = NemoColEmbed.read(directory)
    plan = PatchPlan.read(directory, files.vision)
    # The authors' processor truncates whole conversations, not texts within them.
    reader = ChatReader(files, plan, min(spec.max_sequence_length, files.longest), spec.runtime, kept="")
    return NemoColEmbedProcessor(reader, Roles.read(files.settings))
