"""Nemotron ColEmbed VL v2: a page as an image, one vector for each of its tokens, those of the prompt included.

image, text → a conversation → tokens, and patches → Qwen3-VL → unit vectors
query       → a conversation → tokens              → Qwen3-VL → unit vectors

Qwen3-VL's layers attend in both directions here, and its final norm is not applied. The form of conversations is that
of the authors' own processor (nvidia/nemotron-colembed-vl-4b-v2), and so are the defaults of its settings.
"""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.models.families.shared.pages import PageFamily


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
