"""CLAP: audio and texts in a common embedding space (Wu et al., 2023).

sound → mel spectrogram → transformer with shifted windows → projection → unit vector → dense
text → tokens → RoBERTa → pooler → projection → unit vector → dense

The model reads 10 s at a time. A shorter sound is repeated, as the checkpoint's preprocessor_config.json says. Of a
longer sound the library reads random excerpts. Here the embedding of a file is always the same:

- a checkpoint without fusion reads the whole sound, in as few windows of 10 s as cover it, spread evenly; the embedding
  is the mean of theirs;
- a checkpoint with fusion reads the whole sound, shrunk to 10 s, and three crops: the middle of each third.

The cost of a window is the number of text tokens with as many matrix products: 64 for HTSAT-tiny and RoBERTa-base, 7500
samples to a token. Most blocks read fewer than its 4096 patches, and all are narrower than a layer of the text encoder.

Preprocess makes the spectrograms: for 10 s, a spectrogram takes 0.26 MB and samples 1.9 MB, and 20 ms on one core are
little compared with a forward pass of 400 ms.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from sie_triton.checkpoints.files import MOST, Fields, read_fields, shortened
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.mel import MelPlan
from sie_triton.checkpoints.towers import check_tower, home_of, model_type
from sie_triton.contract import ENCODE_OUTPUTS, Features, Ragged
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.contract.tensors import AUDIO, INPUT_IDS, MEL, READ, TRUNCATED
from sie_triton.errors import LoadError
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.shared.towers.processor import tokens_of_texts
from sie_triton.models.inputs.audio import AudioFile, AudioReader
from sie_triton.models.inputs.base import Processor
from sie_triton.models.inputs.mel import packed_mels, spectrograms
from sie_triton.models.inputs.several import check_alone
from sie_triton.models.inputs.tokenizer import open_tokenizer, packed_ids, truncating

MAX_SIDE = 8192


@dataclass(frozen=True, slots=True)
class ClapFiles:
    """Files of a CLAP model."""

    directory: Path
    dim: int
    longest_text: int  # in tokens
    plan: MelPlan
    window_tokens: int  # tokens of text that cost as much as a window of audio

    @classmethod
    def read(cls, directory: Path) -> "ClapFiles":
        home = home_of(directory)
        config = read_fields(home / "config.json")
        text, audio = config.fields("text_config"), config.fields("audio_config")
        check_tower(text)
        plan = MelPlan.read(home)
        _check(plan, audio)
        # Position ids begin after that of padding, as in RoBERTa.
        reserved = text.integer("pad_token_id", 1, most=LIMITS.max_width) + 1
        longest = text.integer("max_position_embeddings", 514, least=reserved + 2) - reserved
        dim = config.integer("projection_dim", 512, least=1, most=LIMITS.max_width)
        return cls(home, dim, longest, plan, _window_tokens(text, audio))


def _check(plan: MelPlan, audio: Fields) -> None:
    """Raise LoadError if the spectrograms are not those that the model reads."""
    bands = audio.integer("num_mel_bins", 64, least=1, most=MAX_SIDE)
    side = audio.integer("spec_size", 256, least=bands, most=MAX_SIDE)
    if plan.num_bands != bands:
        wrong = f"feature_size {plan.num_bands}, and num_mel_bins {bands}"
    elif plan.num_frames > side * (side // bands):
        wrong = f"{plan.num_frames} frames, and spec_size {side}, which has room for {side * (side // bands)}"
    elif plan.is_fused != audio.flag("enable_fusion", False):
        wrong = f"truncation {'fusion' if plan.is_fused else 'rand_trunc'}, and enable_fusion {not plan.is_fused}"
    else:
        return
    message = f"the feature extractor has {wrong.replace(', and', f', and {audio.where} has')}"
    raise LoadError(message, "unsupported")


def _window_tokens(text: Fields, audio: Fields) -> int:
    """Return the number of text tokens whose matrix products cost as much as those of one window.

    Each stage reads a quarter of the patches of the stage before it, at twice the width, so all blocks cost the same.
    """
    depths, stride = audio.values.get("depths", [2, 2, 6, 2]), audio.values.get("patch_stride", 4)
    if not isinstance(depths, list) or not depths or any(each not in range(1, LIMITS.max_layers) for each in depths):
        raise audio.corrupt(f"depths: must be a list of whole numbers (given {shortened(depths)})")
    stride = stride[0] if isinstance(stride, list) and stride else stride
    if stride not in range(1, MAX_SIDE):
        raise audio.corrupt(f"patch_stride: must be a whole number (given {shortened(stride)})")
    patches: int = (audio.integer("spec_size", 256) // stride) ** 2
    of_window = (
        patches * sum(depths) * audio.integer("patch_embeds_hidden_size", 96, least=1, most=LIMITS.max_width) ** 2
    )
    of_token = text.integer("num_hidden_layers", 12) * text.integer("hidden_size", 768) ** 2
    return min(max(1, round(of_window / of_token)), MOST)


class Clap(Family):
    inputs = ("text", "audio")
    outputs = (ENCODE_OUTPUTS["dense"],)
    features = (READ, INPUT_IDS, MEL)

    def recognise(self, directory: Path) -> Recognised | None:
        if model_type(directory) != "clap":
            return None
        files = ClapFiles.read(directory)
        plan = files.plan
        kind = "with fusion" if plan.is_fused else "without fusion"
        reason = f"config.json: clap {kind}, sounds at {plan.rate} Hz in windows of {plan.window // plan.rate} s"
        dims = {"dense": files.dim}
        return Recognised(reason, files.longest_text, dims, normalize=True, weights=(files.directory,))

    def longest(self, directory: Path) -> int:
        return ClapFiles.read(directory).longest_text


class ClapProcessor(Processor):
    """Processor of items that are either a sound or a text."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, files: ClapFiles, runtime: Runtime) -> None:
        self._tokenizer, self._plan, self._window_tokens = tokenizer, files.plan, files.window_tokens
        self._sounds = AudioReader(runtime, files.plan.rate)

    def prepare(self, element: Any) -> Any:
        sound = element.get(AUDIO.name)
        if not isinstance(sound, AudioFile):
            return element
        check_alone(element, AUDIO.name)
        return {AUDIO.name: spectrograms(self._sounds.samples(sound), self._plan)}

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        sounds = [item.get(AUDIO.name) for item in framed]
        ids, cut = tokens_of_texts(self._tokenizer, framed)
        windows = [0 if sound is None else 1 if self._plan.is_fused else len(sound) for sound in sounds]
        read = [len(of) + self._window_tokens * count for of, count in zip(ids, windows, strict=True)]
        lengths = Ragged(np.array(read, np.int32))
        return {READ.name: lengths, TRUNCATED.name: Ragged(cut), **packed_ids(ids), **packed_mels(sounds)}


def load_processor(spec: ModelSpec, directory: Path) -> ClapProcessor:
    files = ClapFiles.read(directory)
    tokenizer = truncating(open_tokenizer(files.directory), min(spec.max_sequence_length, files.longest_text))
    return ClapProcessor(tokenizer, files, spec.runtime)
