"""A sound and a prompt → Whisper's input: the spectrogram of the whole sound, and the decoder's first tokens. No torch.

The cost of a window is the encoder's tokens, and the most that the decoder may generate.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from sie_triton.contract import Features, Part, Ragged
from sie_triton.contract.arrays import Floats
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.contract.tensors import READ
from sie_triton.errors import InputError, LoadError
from sie_triton.models.families.shared.readers.processor import (
    NEW_TOKENS,
    TASK_PARAMETER,
    ReadingPrompt,
    check_instruction,
    new_tokens,
)
from sie_triton.models.families.whisper import DURATION, ENGLISH, LANGUAGE_PARAMETER, TASKS, WhisperFiles
from sie_triton.models.inputs.audio import AudioFile, AudioReader
from sie_triton.models.inputs.base import Processor
from sie_triton.models.inputs.mel import packed_mels, whisper_spectrogram
from sie_triton.models.inputs.tokenizer import open_tokenizer, packed_ids

# Token before a prompt.
PROMPT = "<|startofprev|>"


class PreparedSound(NamedTuple):
    """A sound: its spectrogram [frames, bands], of at least one window, and its own duration."""

    mel: Floats
    milliseconds: int


class WhisperProcessor(Processor):
    """Processor of sounds with prompts. `longest` limits the tokens of prompt and answer together. Thread-safe."""

    prepares = True

    def __init__(self, tokenizer: tokenizers.Tokenizer, files: WhisperFiles, longest: int, runtime: Runtime) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer, self._files = tokenizer, files
        self._added = frozenset(tokenizer.get_added_tokens_decoder())
        self._longest = min(longest, files.positions)
        self._sounds = AudioReader(runtime, files.plan.rate)
        if (prompt := tokenizer.token_to_id(PROMPT)) is None:
            raise LoadError(f"{files.directory}: tokenizer.json has no token {PROMPT}", "corrupt")
        self._prompt = prompt

    def frame(self, part: Part) -> ReadingPrompt:
        """Return the tokens of language and task, then those of the prompt.

        The start token stands for a language that is detected, and for both in a model of English alone.
        """
        check_instruction(part)
        ids = [*self._language_and_task(part), *self._prompt_ids((part.instruction or "").strip())]
        # The start token comes before language and task.
        room = self._longest - (len(ids) + 1 if self._files.tasks else len(ids) - 1)
        return ReadingPrompt(ids, new_tokens(part, self._files.positions, room), 1)

    def is_slow(self, element: Any) -> bool:
        return isinstance(element, AudioFile)

    def prepare(self, element: Any) -> Any:
        if not isinstance(element, AudioFile):
            return element
        samples, plan = self._sounds.samples(element), self._files.plan
        return PreparedSound(whisper_spectrogram(samples, plan), round(1000 * len(samples) / plan.rate))

    def encode(self, framed: Sequence[tuple[PreparedSound, ReadingPrompt]], *, is_query: bool = False) -> Features:
        sounds, prompts = zip(*framed, strict=True)
        read = [
            len(prompt.ids) + self._files.num_windows(len(sound.mel)) * (self._files.window_tokens + prompt.new_tokens)
            for sound, prompt in framed
        ]
        return {
            READ.name: Ragged(np.array(read, np.int32)),
            **packed_ids([each.ids for each in prompts]),
            **packed_mels([each.mel for each in sounds]),
            DURATION.name: Ragged(np.array([each.milliseconds for each in sounds], np.int32)),
            NEW_TOKENS.name: Ragged(np.array([each.new_tokens for each in prompts], np.int32)),
        }

    def _prompt_ids(self, text: str) -> list[int]:
        where, most = "parameter instruction", self._files.positions // 2 - 1
        if not text:
            return []
        ids = self._tokenizer.encode(f" {text}", add_special_tokens=False).ids
        if not self._added.isdisjoint(ids):
            raise InputError.at(where, "contains a special token of the model; leave it out")
        if len(ids) > most:
            raise InputError.at(where, f"has {len(ids)} tokens; the model reads at most {most} of a prompt")
        return [self._prompt, *ids]

    def _language_and_task(self, part: Part) -> list[int]:
        """Return the two tokens; raise InputError naming what the model cannot do."""
        languages, tasks, start = self._files.languages, self._files.tasks, self._files.start
        language = str(part.options.get(LANGUAGE_PARAMETER.name, ""))
        task = str(part.options.get(TASK_PARAMETER.name, TASKS[0]))
        _check(LANGUAGE_PARAMETER.name, language, ["", *(languages or [ENGLISH])])
        _check(TASK_PARAMETER.name, task, [*(tasks or TASKS[:1])])
        return [languages.get(language, start), tasks.get(task, start)]


def _check(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InputError.at(f"parameter {name}", f"{value!r} is not one of {', '.join(filter(None, allowed))}")


def load_processor(spec: ModelSpec, directory: Path) -> WhisperProcessor:
    return WhisperProcessor(
        open_tokenizer(directory), WhisperFiles.read(directory), spec.max_sequence_length, spec.runtime
    )
