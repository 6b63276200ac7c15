"""Whisper's forward pass: windows of several sounds side by side, decoded by transformers' own loop."""

import json
import logging
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
import torch
from transformers import AutoModelForSpeechSeq2Seq, PreTrainedModel

from sie_triton.contract import Features, Ragged
from sie_triton.contract.arrays import Floats, Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, LENGTHS, MEL, MEL_LENGTHS, READ
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.generate import StopAtDeadline, Writer
from sie_triton.models.families.shared.readers.adapter import SAMPLE_TOKENS, USUAL_TOKENS, ReaderAdapter
from sie_triton.models.families.shared.readers.processor import NEW_TOKENS
from sie_triton.models.families.whisper import DURATION, ENGLISH, TASKS, WhisperFiles
from sie_triton.models.inputs.features import copies
from sie_triton.models.inputs.tokenizer import open_tokenizer

# Each pass reads one window. A window that ends within a long segment is read again from its beginning, so well-trained
# models need less than twice as many passes as a sound has windows.
PASSES_PER_WINDOW, MORE_PASSES = 4, 4


class Segment(NamedTuple):
    start: float  # in seconds
    end: float
    tokens: Sequence[int]


class UnfinishedError(Exception):
    """The deadline passed, or a sound takes too many passes, because the times that the model writes advance slowly."""


class Transcriber(Writer):
    """A Whisper model. Items that run together have one prompt and one task, and are all one window long, or longer."""

    def __init__(self, model: PreTrainedModel, files: WhisperFiles) -> None:
        super().__init__(model)
        self._files = files
        # Older files say here what requests say, language and task, and when to decode a window once more.
        for name in ("forced_decoder_ids", "compression_ratio_threshold", "logprob_threshold"):
            setattr(self._model.generation_config, name, None)
        self._model.config.forced_decoder_ids = None
        # The library warns in each window of a maximum length that it has set itself.
        logging.getLogger("transformers.generation.utils").setLevel(logging.ERROR)

    @torch.inference_mode()
    def languages(self, sounds: Sequence[Floats]) -> list[int]:
        """Return the token of the language that each sound begins with."""
        beginnings = [sound[: self._files.window_frames] for sound in sounds]
        found: list[int] = self._model.detect_language(self._features(beginnings)).tolist()
        return found

    @torch.inference_mode()
    def segments(
        self, sounds: Sequence[Floats], inputs: Mapping[str, Any], new_tokens: int, deadline: StopAtDeadline
    ) -> list[list[Segment]]:
        """Return the segments of each sound, [frames, bands]; raise UnfinishedError."""
        frames = torch.tensor([len(sound) for sound in sounds])
        mask = (torch.arange(int(frames.max())) < frames[:, None]).long().to(self.device)
        is_longer = bool((frames > self._files.window_frames).all())
        passes = 0

        def check(progress: torch.Tensor) -> None:
            nonlocal passes
            passes += 1
            most = [self.most_passes(int(of)) for at, of in progress.tolist() if at < of]
            if deadline.is_over or passes > min(most):
                raise UnfinishedError

        given = {
            **inputs,
            "input_features": self._features(sounds),
            "attention_mask": mask if is_longer else None,
            "return_timestamps": True,
            "return_segments": True,
            "monitor_progress": check,
        }
        found = self._generate(given, new_tokens, 1, deadline)["segments"]
        return [
            [Segment(float(each["start"]), float(each["end"]), each["tokens"].tolist()) for each in segments]
            for segments in found
        ]

    def most_passes(self, num_frames: int) -> int:
        return PASSES_PER_WINDOW * self._files.num_windows(num_frames) + MORE_PASSES

    def _features(self, sounds: Sequence[Floats]) -> torch.Tensor:
        """Return [sounds, bands, frames], filled up with zeros, which are not read."""
        features = [torch.from_numpy(sound) for sound in sounds]
        padded = torch.nn.utils.rnn.pad_sequence(features, batch_first=True)
        return padded.transpose(1, 2).to(self.device, self.dtype)


class WhisperAdapter(ReaderAdapter):
    """Whisper adapter. Sounds are at most `max_s` seconds long."""

    encoder: Transcriber

    def __init__(
        self, transcriber: Transcriber, tokenizer: tokenizers.Tokenizer, files: WhisperFiles, max_s: float
    ) -> None:
        most = max(files.window_frames, int(max_s * files.plan.rate) // files.plan.hop + 1)
        limits = {
            LENGTHS.name: files.positions,
            MEL_LENGTHS.name: most * files.plan.num_bands,
            NEW_TOKENS.name: files.positions,
            READ.name: files.positions + files.num_windows(most) * (files.window_tokens + files.positions),
        }
        super().__init__(transcriber, tokenizer, limits)
        self._files = files
        self._names = {token: f"<|{code}|>" for code, token in files.languages.items()}
        self._tasks = {token: task for task, token in files.tasks.items()}
        window = {
            READ.name: Ragged(np.array([files.window_tokens], np.int32)),
            INPUT_IDS.name: Ragged.of([np.array([files.start, files.tasks.get(TASKS[0], files.start)], np.int32)]),
            MEL.name: Ragged.of([np.zeros(files.window_frames * files.plan.num_bands, np.float32)]),
            DURATION.name: Ragged(np.zeros(1, np.int32)),
            NEW_TOKENS.name: Ragged(np.array([SAMPLE_TOKENS], np.int32)),
        }
        self.sample = partial(copies, window, files.window_tokens + USUAL_TOKENS)

    def elements(self, features: Features) -> Sequence[Floats]:
        """Return the spectrogram of each item, [frames, bands]."""
        mels, bands = features[MEL.name].split(), self._files.plan.num_bands
        if any(len(mel) % bands or len(mel) < self._files.window_frames * bands for mel in mels):
            raise ValueError("spectrograms must be whole")
        return [mel.reshape(-1, bands) for mel in mels]

    def kind(self, element: Any, prompt: Ints) -> Hashable:
        return len(element) > self._files.window_frames, *prompt[1:].tolist()

    def answers(
        self, elements: Sequence[Any], prompts: Sequence[Ints], new_tokens: int, beams: int, deadline: StopAtDeadline
    ) -> Sequence[Sequence[Any]]:
        """Return for each sound its language and its segments, or the number of passes that were not enough."""
        try:
            languages = self._languages(elements, prompts)
            inputs = self._inputs(languages, prompts[0].tolist())
            segments = self.encoder.segments(elements, inputs, new_tokens, deadline)
        except UnfinishedError:
            if deadline.is_over:
                return [[]] * len(elements)
            if len(elements) == 1:
                return [[self.encoder.most_passes(len(elements[0]))]]
            pairs = zip(elements, prompts, strict=True)
            return [self.answers([each], [prompt], new_tokens, beams, deadline)[0] for each, prompt in pairs]
        return [[language, *of_one] for language, of_one in zip(languages, segments, strict=True)]

    def text(self, answer: Sequence[Any], item: int, features: Features) -> str:
        """Return text, language, duration and segments as JSON, or the number of passes."""
        if answer and isinstance(answer[0], int):
            return json.dumps({"passes": answer[0]})
        language, *segments = answer or [ENGLISH]
        told = [{"start": each.start, "end": each.end, "text": self._words(each.tokens)} for each in segments]
        return json.dumps(
            {
                "text": self._words([token for each in segments for token in each.tokens]),
                "language": language.strip("<|>"),
                "duration_ms": int(features[DURATION.name].values[item]),
                "segments": [each for each in told if each["text"]],
            }
        )

    def _words(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without times and special tokens."""
        words = [token for token in tokens if token < self._files.first_time]
        return self._tokenizer.decode(words, skip_special_tokens=True).strip()

    def _languages(self, sounds: Sequence[Floats], prompts: Sequence[Ints]) -> list[str]:
        """Return the names of the tokens of the languages, which are detected where a prompt has none."""
        found = [self._names.get(int(prompt[0]), "") for prompt in prompts]
        unknown = [i for i, name in enumerate(found) if not name]
        if self._tasks and unknown:
            for i, token in zip(unknown, self.encoder.languages([sounds[i] for i in unknown]), strict=True):
                found[i] = self._names[token]
        return [name or ENGLISH for name in found]

    def _inputs(self, languages: Sequence[str], prompt: Sequence[int]) -> Mapping[str, Any]:
        """Return the arguments of the library's `generate` for sounds with one prompt."""
        _, task, *ids = prompt
        if self._tasks and task not in self._tasks:
            raise ValueError("a prompt must have a task")
        of_many = {"language": languages, "task": self._tasks[task]} if self._tasks else {}
        return {**of_many, "prompt_ids": torch.tensor(ids, device=self.encoder.device) if ids else None}


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> WhisperAdapter:
    files = WhisperFiles.read(directory)
    transcriber = engine.prepared(Transcriber(engine.load(directory, AutoModelForSpeechSeq2Seq), files))
    return WhisperAdapter(transcriber, open_tokenizer(directory), files, spec.runtime.max_audio_s)
