"""Comparison of Whisper with transformers: the same tokens and times from the same weights and sounds."""

import json

import numpy as np
import pytest
import torch
import transformers

from sie_triton.checkpoints.mel import MelPlan
from sie_triton.engines.torch import generate
from sie_triton.errors import InputError, LoadError
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.families.shared.readers.processor import GENERATED
from sie_triton.models.families.whisper import findings
from sie_triton.models.inputs.mel import whisper_spectrogram
from tests.support.copies import copy
from tests.support.deadlines import given_up
from tests.support.readers import Reader
from tests.support.sounds import saved, sound
from tests.support.whispers import IDS, RATE, SUPPRESSED, WINDOW_S, save_whisper

SHORT, LONG = (0.4, 1.3, 2.0), (2.05, 5.3, 9.0)
SOUNDS = [sound(seconds, RATE, seed=i)[:, 0] for i, seconds in enumerate([*SHORT, *LONG])]


FILES = [saved(each, RATE, subtype="FLOAT") for each in SOUNDS]


class Transcribing(Reader):
    """Whisper without a server, whose answers are noted."""

    def __init__(self, directory):
        super().__init__("whisper", directory, inputs=("audio",))
        self.written = []
        text = self.adapter.text
        self.adapter.text = lambda answer, *given: self.written.append(answer) or text(answer, *given)

    def segments(self, requests):
        """Return the segments of each sound, as start, end and tokens."""
        self.written.clear()
        self.answers(requests)
        return [[tuple(each) for each in answer[1:]] for answer in self.written]


class Library:
    def __init__(self, directory):
        self.model = transformers.WhisperForConditionalGeneration.from_pretrained(directory).eval()
        self.extractor = transformers.WhisperFeatureExtractor.from_pretrained(directory)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory)

    def segments(self, samples, prompt="", **options):
        """Return the segments of one sound, as start, end and tokens."""
        is_longer = len(samples) > WINDOW_S * RATE
        longer = {"padding": "longest", "truncation": False, "return_attention_mask": True} if is_longer else {}
        inputs = self.extractor(samples, sampling_rate=RATE, return_tensors="pt", **longer)
        if prompt:
            words = self.tokenizer(f" {prompt}", add_special_tokens=False).input_ids
            options["prompt_ids"] = torch.tensor([IDS["<|startofprev|>"], *words])
        found = self.model.generate(**inputs, return_timestamps=True, return_segments=True, **options)
        return [(float(each["start"]), float(each["end"]), each["tokens"].tolist()) for each in found["segments"][0]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory, minilm_directory):
    directory = tmp_path_factory.mktemp("whisper")
    save_whisper(directory, minilm_directory)
    return directory


@pytest.fixture(scope="module")
def ours(directory):
    assert family_in(directory)[0] == "whisper"
    return Transcribing(directory)


def test_tokens_and_times_are_those_of_the_library(ours, library):
    found = [ours.segments([([each], {})])[0] for each in FILES]
    expected = [library.segments(each, task="transcribe") for each in SOUNDS]
    assert found == expected
    tokens = [token for segments in found for *_, of_one in segments for token in of_one]
    assert len(set(tokens)) > 20, "it says more than one thing"
    assert any(len(segments) > 3 for segments in found)
    assert not {*SUPPRESSED}.intersection(tokens)


def test_requests_of_all_kinds_in_one_batch_as_alone(ours, library):
    requests = [
        (FILES, {}),
        (FILES[2:5], {"language": "de", "task": "translate"}),
        (FILES[1:2], {"language": "fr", "max_new_tokens": 7}),
        (FILES[3:5], {"instruction": "the red house"}),
    ]
    asked = [
        {"task": "transcribe"},
        {"language": "de", "task": "translate"},
        {"language": "fr", "task": "transcribe", "max_new_tokens": 7},
        {"prompt": "the red house", "task": "transcribe"},
    ]
    sounds = (SOUNDS, SOUNDS[2:5], SOUNDS[1:2], SOUNDS[3:5])
    pairs = zip(sounds, asked, strict=True)
    expected = [library.segments(each, **options) for several, options in pairs for each in several]
    assert ours.segments(requests) == expected
    assert ours.segments([requests[1]]) == expected[6:9], "alone"
    assert expected[6:9] != expected[2:5]
    assert expected[10:] != expected[3:5]


def test_a_model_of_english_alone(tmp_path, minilm_directory):
    """Its files force the token against times, which the library leaves out where there are times."""
    english = {"is_multilingual": False, "lang_to_id": None, "task_to_id": None}
    save_whisper(tmp_path, minilm_directory, **english, forced_decoder_ids=[[1, IDS["<|notimestamps|>"]]])
    ours, library = Transcribing(tmp_path), Library(tmp_path)
    assert ours.segments([(FILES, {})]) == [library.segments(each) for each in SOUNDS]
    assert ours.segments([(FILES[:1], {"instruction": "red"})]) == [library.segments(SOUNDS[0], prompt="red")]
    for name, value in {"task": "translate", "language": "de"}.items():
        with pytest.raises(InputError) as failed:
            ours(FILES[:1], **{name: value})
        assert failed.value.field == name


@pytest.mark.parametrize("change", [{"suppress_tokens": None}, {"max_initial_timestamp_index": 3}])
def test_other_rules_for_tokens_fail_the_same_comparison(tmp_path, minilm_directory, library, change):
    """Negative control: words that no answer may have, and times that it may not begin with."""
    save_whisper(tmp_path, minilm_directory, **change)
    found = Transcribing(tmp_path).segments([(FILES, {})])
    assert found != [library.segments(each, task="transcribe") for each in SOUNDS]


def test_an_answer_has_text_language_duration_and_segments(ours, library):
    (short,), (long,) = ours(FILES[:1], language="de"), ours(FILES[4:5])
    assert short["data"]["language"] == "de"
    assert short["data"]["duration_ms"] == 400
    assert long["data"]["duration_ms"] == 5300
    segments = library.segments(SOUNDS[4], task="transcribe")
    words = [library.tokenizer.decode(each, skip_special_tokens=True).strip() for *_, each in segments]
    told = [(start, end, text) for (start, end, _), text in zip(segments, words, strict=True) if text]
    assert [(each["start"], each["end"], each["text"]) for each in long["data"]["segments"]] == told
    assert long["entities"] == [{"text": long["data"]["text"], "label": "text", "score": 1.0, "bbox": None}]
    assert told[0][2] in long["data"]["text"]


@pytest.mark.parametrize(("bands", "seconds"), [(80, 30), (128, 30), (80, 2)])
def test_spectrograms_are_those_of_the_extractor(tmp_path, bands, seconds):
    extractor = transformers.WhisperFeatureExtractor(feature_size=bands, chunk_length=seconds)
    extractor.save_pretrained(tmp_path)
    plan = MelPlan.of_whisper(tmp_path)
    for length in (0.01, seconds / 3, seconds * 1.0007, seconds * 1.4):
        samples = sound(length, RATE, seed=3)[:, 0]
        samples[len(samples) // 2 :] *= 1e-4
        options = {"padding": "longest", "truncation": False} if length > seconds else {}
        expected = extractor(samples, sampling_rate=RATE, return_tensors="np", **options)["input_features"][0].T
        found = whisper_spectrogram(samples, plan)
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() < 1e-4


def test_a_sound_costs_its_windows_and_the_most_that_may_be_generated(ours):
    """Of the 60 tokens of an answer, three are the start, the language and the task."""
    given = [({}, [57] * 6), ({"max_new_tokens": 7}, [7] * 6), ({"instruction": "red"}, [55] * 6)]
    for options, most in given:
        features = ours.batch([(FILES, options)]).features
        assert features["new_tokens"].values.tolist() == most
        prompt = features["input_ids"].of_items.tolist()
        cost = [windows * (100 + tokens) for windows, tokens in zip([1, 1, 1, 2, 3, 5], most, strict=True)]
        assert features["read"].values.tolist() == [a + b for a, b in zip(prompt, cost, strict=True)]


def test_wrong_requests_name_the_parameter(ours):
    wrong = {"language": "xx", "task": "<OCR>"}
    for name, value in wrong.items():
        with pytest.raises(InputError) as failed:
            ours(FILES[:1], **{name: value})
        assert failed.value.field == name
    for prompt in ("red " * 40, "a<|en|>", "a" * 20_000):
        with pytest.raises(InputError) as failed:
            ours(FILES[:1], instruction=prompt)
        assert failed.value.field == "instruction"


def test_a_sound_that_takes_too_many_passes_fails_alone(ours, monkeypatch):
    requests = [(FILES[3:6], {})]
    usual, slow = rows(ours, requests), len(SOUNDS[4]) // 160
    most = ours.adapter.encoder.most_passes
    monkeypatch.setattr(ours.adapter.encoder, "most_passes", lambda frames: 1 if frames == slow else most(frames))
    assert rows(ours, requests) == [usual[0], {"passes": 1}, usual[2]]
    with pytest.raises(InputError):
        ours(FILES[4:5])


def rows(ours, requests, deadline_ns=None):
    """Return what the worker writes of each sound."""
    result = ours.adapter.forward(ours.batch(requests, deadline_ns))
    texts = np.split(result[GENERATED.name], np.cumsum(result[GENERATED.lengths])[:-1])
    return [json.loads(each.tobytes()) for each in texts]


def test_nothing_is_generated_after_the_deadline(ours, monkeypatch):
    requests = [(FILES, {})]
    assert not findings(given_up(ours, requests, monkeypatch)[:1], {}).count


def test_no_window_is_read_after_the_deadline(ours, monkeypatch):
    calls = iter(range(1000))
    monkeypatch.setattr(generate, "monotonic_ns", lambda: next(calls))
    (read,) = rows(ours, [(FILES[5:], {})], deadline_ns=5)
    assert (read["text"], read["segments"]) == ("", [])
    assert next(calls) == 8, "asked before the pass, before each window, after each token and at the end"


def test_a_calibration_sample_has_windows_of_its_cost(ours):
    (few, many) = (ours.adapter.forward(ours.sample(total)) for total in (600, 2400))
    assert (len(few[GENERATED.lengths]), len(many[GENERATED.lengths])) == (1, 4)


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("generation_config.json", "no_timestamps_token_id", None),
        ("generation_config.json", "lang_to_id", None),
        ("generation_config.json", "task_to_id", {"transcribe": 5}),
        ("generation_config.json", "condition_on_prev_tokens", True),
        ("config.json", "num_mel_bins", 128),
        ("config.json", "max_source_positions", 99),
        ("preprocessor_config.json", "dither", 0.1),
        ("preprocessor_config.json", "padding_side", "left"),
        ("preprocessor_config.json", "feature_extractor_type", "ClapFeatureExtractor"),
    ],
)
def test_files_that_cannot_be_served_are_refused_by_key(tmp_path, directory, file, key, value):
    with pytest.raises(LoadError) as failed:
        family_in(copy(directory, tmp_path, file, **{key: value}))
    assert key in str(failed.value) or "translate" in str(failed.value)
