"""Whisper: speech as text with times (Radford et al., 2022).

sound → log-mel spectrogram → transformer, 30 s at a time ┐
prompt, language, task → decoder ────────────────────────┴→ tokens and times → segments → data, entities

Each window of a longer sound begins where the last complete segment of the one before it ended, as in transformers'
sequential algorithm. Decoding is greedy: a window is never decoded again at a higher temperature.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from sie_triton.checkpoints.files import MOST, Fields, read_fields
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.mel import MelPlan
from sie_triton.checkpoints.page_models import kind_of
from sie_triton.contract import Extraction, Features, Findings, Line, Parameter, ParameterValue, Part, Ragged, Rows
from sie_triton.contract.arrays import Floats
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.contract.tensors import INPUT_IDS, MEL, READ, Tensor
from sie_triton.errors import InputError, LoadError
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.shared.readers.processor import (
    CERTAIN,
    GENERATED,
    NEW_TOKENS,
    NEW_TOKENS_PARAMETER,
    TASK_PARAMETER,
    ReadingPrompt,
    check_instruction,
    new_tokens,
    text_of,
)
from sie_triton.models.inputs.audio import AudioFile, AudioReader
from sie_triton.models.inputs.base import Processor
from sie_triton.models.inputs.mel import packed_mels, whisper_spectrogram
from sie_triton.models.inputs.tokenizer import open_tokenizer, packed_ids

KIND = ("whisper", "WhisperForConditionalGeneration")
TASKS = ("transcribe", "translate")
ENGLISH = "en"

# Frames of the spectrogram for each token of the encoder.
STRIDE = 2

# Settings of generation_config.json by which the library would decode otherwise than greedily, window by window.
NOT_SERVED = ("condition_on_prev_tokens", "no_speech_threshold")

DURATION = Tensor("duration_ms", "INT32", (-1,), "[n] durations of the sounds, in milliseconds", "", 0)
LANGUAGE_PARAMETER = Parameter(
    "language", str, max_characters=16, for_prompt=True, doc="spoken language, such as `en`; by default detected"
)


@dataclass(frozen=True, slots=True)
class WhisperFiles:
    """Files of a Whisper model. Token ids are those of the decoder."""

    directory: Path
    plan: MelPlan
    window_tokens: int  # of the encoder
    positions: int  # maximum number of tokens of the decoder, with its prompt
    start: int  # id of the token before language and task
    first_time: int  # id of the token for 0 s; all from there on are times
    languages: Mapping[str, int]  # code → id; empty in a model of English alone
    tasks: Mapping[str, int]  # name → id

    @classmethod
    def read(cls, directory: Path) -> "WhisperFiles":
        config, generation = (read_fields(directory / f"{name}.json") for name in ("config", "generation_config"))
        plan = MelPlan.of_whisper(directory)
        bands = config.integer("num_mel_bins", 80, least=1, most=1024)
        tokens = config.integer("max_source_positions", 1500, least=1, most=1 << 16)
        for layers in ("encoder_layers", "decoder_layers"):
            config.integer(layers, 4, least=1, most=LIMITS.max_layers)
        config.integer("d_model", 384, least=1, most=LIMITS.max_width)
        if (plan.num_bands, plan.window) != (bands, STRIDE * tokens * plan.hop):
            given = f"{plan.num_bands} bands, windows of {plan.window} samples every {plan.hop}"
            message = f"num_mel_bins is {bands}, max_source_positions {tokens}, but the feature extractor makes {given}"
            raise config.unserved(message)
        for key in NOT_SERVED:
            if generation.values.get(key):
                raise generation.unserved(f"{key} cannot be served: decoding is greedy, each window by itself")
        languages: dict[str, int] = {}
        tasks: dict[str, int] = {}
        if generation.flag("is_multilingual", True):
            languages = {name.strip("<|>"): token for name, token in _ids(generation, "lang_to_id").items()}
            tasks = _ids(generation, "task_to_id", TASKS)
        return cls(
            directory,
            plan,
            tokens,
            config.integer("max_target_positions", 448, least=8, most=MOST),
            generation.integer("decoder_start_token_id"),
            generation.integer("no_timestamps_token_id") + 1,
            languages,
            tasks,
        )

    @property
    def window_frames(self) -> int:
        return STRIDE * self.window_tokens

    def num_windows(self, num_frames: int) -> int:
        """Return the least number of windows that a sound of at least one window takes."""
        return -(-num_frames // self.window_frames)


def _ids(fields: Fields, key: str, known: Sequence[str] | None = None) -> dict[str, int]:
    """Return the token ids by name; those of `known` names are required. Raise LoadError if there are none."""
    given = fields.fields(key)
    found = {name: given.integer(name) for name in known or given.values}
    if not found:
        raise fields.unserved(f"{key} is missing, by which the library chooses languages and tasks")
    return found


def findings(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    """Return text, language, duration in milliseconds, and segments with times in seconds."""
    (row,) = rows
    read = json.loads(text_of(row))
    if "passes" in read:
        problem = f"the times in the model's answer advance too slowly: more than {read['passes']} windows were read"
        raise InputError(f"{problem}; send a shorter sound")
    return Findings(data=read, lines=[Line(read["text"], None, "text", CERTAIN)] if read["text"] else [])


class Whisper(Family):
    reference_adapters = ("whisper:WhisperAdapter",)
    inputs = ("audio",)
    extraction = Extraction((GENERATED,), findings)
    features = (READ, INPUT_IDS, MEL, DURATION, NEW_TOKENS)
    parameters = (TASK_PARAMETER, LANGUAGE_PARAMETER, NEW_TOKENS_PARAMETER)
    generates = True

    def recognise(self, directory: Path) -> Recognised | None:
        if kind_of(directory) != KIND:
            return None
        files = WhisperFiles.read(directory)
        spoken = f"{len(files.languages)} languages" if files.languages else "English"
        reason = f"config.json: whisper for {spoken}, windows of {files.plan.window // files.plan.rate} s"
        return Recognised(reason, files.positions, {}, extracts=True, weights=(directory,))

    def longest(self, directory: Path) -> int:
        return WhisperFiles.read(directory).positions


# Token before a prompt.
PROMPT = "<|startofprev|>"


class PreparedSound(NamedTuple):
    """A sound: its spectrogram [frames, bands], of at least one window, and its own duration."""

    mel: Floats
    milliseconds: int


class WhisperProcessor(Processor):
    """Processor of sounds with prompts. `longest` limits the tokens of prompt and answer together. Thread-safe.

    The cost of a window is the encoder's tokens, and the most that the decoder may generate.
    """

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
