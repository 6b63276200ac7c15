"""Vectors of sounds and texts equal those of transformers on the same weights and samples."""

import io

import numpy as np
import pytest
import soundfile
import soxr
import torch
import transformers

from sie_triton.checkpoints.mel import MelPlan
from sie_triton.errors import LoadError
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.families.clap import ClapFiles
from sie_triton.models.inputs.audio import AudioFile
from sie_triton.models.inputs.mel import spectrograms, starts
from tests.support.copies import copy
from tests.support.items import Served
from tests.support.sounds import of_all_kinds, saved, sound, sounds
from tests.support.towers import MEL, save_clap

TEXTS = ["the sound of a cat", "two dogs bark", "", "naïve 😀 " * 60]
KINDS = of_all_kinds()
RATE, WINDOW = MEL["sampling_rate"], MEL["sampling_rate"] * MEL["max_length_s"]

# As laion's checkpoints have them.
LAION = {"feature_size": 64, "frequency_min": 50, "frequency_max": 14_000}


@pytest.fixture(scope="module", params=["windows", "fusion"])
def directory(request, tmp_path_factory, minilm_directory):
    directory = tmp_path_factory.mktemp("clap")
    save_clap(directory, minilm_directory, is_fused=request.param == "fusion")
    return directory


@pytest.fixture(scope="module")
def ours(directory):
    assert family_in(directory)[0] == "clap"
    return served(directory)


def served(directory, **changes):
    return Served("clap", directory, inputs=("text", "audio"), dims={"dense": 32}, **changes)


class Library:
    """The library, one item at a time: of several sounds it would choose one at random and read it as a long one."""

    def __init__(self, directory):
        self.model = transformers.ClapModel.from_pretrained(directory).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self.extractor = transformers.ClapFeatureExtractor.from_pretrained(directory)

    @torch.inference_mode()
    def text(self, text):
        inputs = self.tokenizer(text, truncation=True, max_length=65, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        return self.model.get_text_features(**inputs).pooler_output[0].numpy()

    @torch.inference_mode()
    def samples(self, samples):
        inputs = self.extractor(samples, sampling_rate=RATE, return_tensors="pt")
        return self.model.get_audio_features(**inputs).pooler_output[0].numpy()

    def file(self, content):
        return self.samples(resampled(content))


def resampled(content):
    samples, rate = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
    return soxr.resample(samples.mean(1), rate, RATE)


def cosine(one, other):
    return float(np.dot(one, other) / np.linalg.norm(one) / np.linalg.norm(other))


def test_texts(ours, library):
    found = ours.encode(TEXTS)["dense"]
    assert np.allclose(found, [library.text(text) for text in TEXTS], atol=1e-5)
    assert cosine(found[0], found[1]) < 0.99


def test_a_sound_of_each_kind(ours, library):
    found = ours.encode([{"audio": content} for content in KINDS.values()])["dense"]
    cosines = {kind: cosine(vector, library.file(KINDS[kind])) for kind, vector in zip(KINDS, found, strict=True)}
    assert min(cosines.values()) >= 0.99999, cosines
    (other,) = ours.encode([{"audio": saved(sound(0.7, seed=9))}])["dense"]
    assert cosine(found[0], other) < 0.999


@pytest.mark.parametrize("seconds", [1.021, 2.7])
def test_long_sounds(ours, library, seconds, monkeypatch):
    """The random choices of the library are replaced: with fusion by the middle of each third, else by all windows."""
    content = saved(sound(seconds, RATE, seed=4), RATE)
    (found,) = ours.encode([{"audio": content}], normalize=False)["dense"]
    monkeypatch.setattr(np.random, "choice", lambda places: places[len(places) // 2])
    samples = resampled(content)
    if library.extractor.truncation == "fusion":
        expected = library.samples(samples)
    else:
        begins = starts(len(samples), WINDOW)
        assert (begins[0], begins[-1], len(begins)) == (0, len(samples) - WINDOW, -(-len(samples) // WINDOW))
        expected = np.mean([library.samples(samples[begin : begin + WINDOW]) for begin in begins], 0)
    assert cosine(found, expected) >= 0.99999
    assert np.isclose(np.linalg.norm(found), np.linalg.norm(expected), atol=1e-4)
    assert np.array_equal(ours.encode([{"audio": content}], normalize=False)["dense"][0], found)


def test_sounds_and_texts_in_one_request(ours, library):
    files = sounds()
    items = [TEXTS[0], {"audio": files[0]}, {"audio": files[1]}, TEXTS[1], ""]
    items += [{"audio": files[2]}, {"audio": files[3]}]
    together = ours.encode(items)["dense"]
    alone = np.concatenate([ours.encode([item])["dense"] for item in items])
    assert np.allclose(together, alone, atol=1e-5)
    expected = [library.text(TEXTS[0]), library.file(files[0]), library.file(files[1]), library.text(TEXTS[1])]
    assert np.allclose(together[:4], expected, atol=1e-4)
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)


def test_windows_of_a_sound_count_as_tokens(directory, ours):
    """A window costs as many tokens as take equally long; a longer sound has several windows, with fusion one."""
    assert ClapFiles.read(directory).window_tokens == 8
    items = [ours.processor.prepare(each) for each in ({"audio": file_of(0.1)}, {"audio": file_of(2.1)})]
    read = ours.processor.encode([{"text": "a cat"}, *items])["read"].values.tolist()
    assert read == ([4, 8, 8] if ours.processor._plan.is_fused else [4, 8, 24])


def file_of(seconds):
    return AudioFile(saved(sound(seconds, RATE), RATE), "audio[0]")


@pytest.mark.parametrize("truncation", ["rand_trunc", "fusion"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        LAION,
        {**LAION, "padding": "repeat"},
        {**LAION, "padding": "pad"},
        {"fft_window_size": 501, "hop_length": 512, "sampling_rate": 8000, "max_length_s": 1},
        {"fft_window_size": 9000, "hop_length": 700, "sampling_rate": 4000, "max_length_s": 1},
        {"sampling_rate": 16_000, "hop_length": 160, "fft_window_size": 400, "frequency_max": 8000, "max_length_s": 3},
    ],
)
def test_spectrograms_are_those_of_the_extractor(tmp_path, settings, truncation, monkeypatch):
    """Within 0.001 dB, of sounds down to where nothing is told apart, of every length; what is drawn is given."""
    monkeypatch.setattr(np.random, "choice", lambda places: places[len(places) // 2])
    extractor = transformers.ClapFeatureExtractor(**settings, truncation=truncation)
    extractor.save_pretrained(tmp_path)
    plan = MelPlan.read(tmp_path)
    window = plan.window / plan.rate
    lengths = [0.01, window / 3.7, window, *([window * 1.0005, window * 1.02, window * 2.6] if plan.is_fused else [])]
    for seed, seconds in enumerate(lengths):
        samples = sound(seconds, plan.rate, seed=seed)[:, 0]
        samples[len(samples) // 2 :] *= 1e-4
        found = spectrograms(samples, plan)
        expected = extractor(samples, sampling_rate=plan.rate, return_tensors="np")["input_features"][0]
        assert found.shape[1:] == expected.shape[1:]
        assert np.abs(found - expected).max() < 1e-3


def test_frames_of_an_odd_number_of_samples(tmp_path, directory, ours):
    """A window has one frame less. With fusion, the library's spectrograms of long sounds would be longer."""
    copy(directory, tmp_path, "preprocessor_config.json", fft_window_size=501)
    if ours.processor._plan.is_fused:
        with pytest.raises(LoadError, match="fft_window_size 501 cannot be served with truncation fusion"):
            family_in(tmp_path)
        return
    files = [KINDS["wav"], saved(sound(0.3, RATE, seed=3), RATE)]
    found, library = served(tmp_path).encode([{"audio": file} for file in files])["dense"], Library(tmp_path)
    assert min(cosine(*each) for each in zip(found, map(library.file, files), strict=True)) >= 0.99999


@pytest.mark.parametrize(
    ("file", "given", "said"),
    [
        ("preprocessor_config.json", {"feature_size": 32}, "feature_size 32, and .*audio_config has num_mel_bins 64"),
        ("preprocessor_config.json", {"max_length_s": 2}, "101 frames, and .* has spec_size 64, which has room for 64"),
        ("preprocessor_config.json", {"padding": "mirror"}, "padding 'mirror' is unknown; supported are repeatpad"),
        ("preprocessor_config.json", {"hop_length": 0}, "hop_length: must be a whole number from 1 to 4000"),
        ("preprocessor_config.json", {"frequency_max": 40}, "at least 0, the first the lower .*given 50 and 40"),
        ("preprocessor_config.json", {"truncation": None}, "truncation None is unknown; supported are fusion"),
        (
            "preprocessor_config.json",
            {"feature_extractor_type": "WhisperFeatureExtractor"},
            "supported are ClapFeature",
        ),
        ("config.json", {"audio_config__depths": 7}, "audio_config: depths: must be a list of whole numbers"),
        ("config.json", {"audio_config__patch_stride": "x"}, "patch_stride: must be a whole number"),
        ("config.json", {"audio_config__spec_size": 0}, "spec_size: must be a whole number from 64"),
    ],
)
def test_files_that_cannot_be_served(tmp_path, directory, file, given, said):
    copy(directory, tmp_path, file, **given)
    with pytest.raises(LoadError, match=said):
        family_in(tmp_path)


def test_fusion_of_one_file_alone(tmp_path, directory, ours):
    fused = ours.processor._plan.is_fused
    copy(directory, tmp_path, "preprocessor_config.json", truncation="rand_trunc" if fused else "fusion")
    with pytest.raises(LoadError, match=f"and .*audio_config has enable_fusion {fused}"):
        family_in(tmp_path)
