"""Items that are sounds or texts → spectrograms and tokens. No torch.

The cost of a window is the number of text tokens with as many matrix products: 64 for HTSAT-tiny and RoBERTa-base, 7500
samples to a token. The 4096 patches of a window would be the wrong measure: most blocks read fewer, and all are
narrower than a layer of the text encoder.

Spectrograms are made here, not in the worker: for 10 s, a spectrogram takes 0.26 MB and samples 1.9 MB, and 20 ms on
one core are little compared with a forward pass of 400 ms.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from sie_triton.contract import Features, Ragged
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.contract.tensors import AUDIO, READ, TRUNCATED
from sie_triton.models.families.clap import ClapFiles
from sie_triton.models.families.shared.towers.processor import tokens_of_texts
from sie_triton.models.inputs.audio import AudioFile, AudioReader
from sie_triton.models.inputs.base import Processor
from sie_triton.models.inputs.mel import packed_mels, spectrograms
from sie_triton.models.inputs.several import check_alone
from sie_triton.models.inputs.tokenizer import open_tokenizer, packed_ids, truncating


class ClapProcessor(Processor):
    """Processor of items that are either a sound or a text."""

    prepares = True

    def __init__(self, tokenizer: tokenizers.Tokenizer, files: ClapFiles, runtime: Runtime) -> None:
        self._tokenizer, self._plan, self._window_tokens = tokenizer, files.plan, files.window_tokens
        self._sounds = AudioReader(runtime, files.plan.rate)

    def is_slow(self, element: Any) -> bool:
        return AUDIO.name in element

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
