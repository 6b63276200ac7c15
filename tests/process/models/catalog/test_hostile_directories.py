"""A broken model directory gives an error of one line that names it: no traceback, no hang."""

from dataclasses import replace
from pathlib import Path

import pytest

from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.errors import CatalogError, LoadError
from sie_triton.models.catalog import recognise
from sie_triton.models.families import load_processor
from sie_triton.pipeline.worker.expected import expected_bytes
from sie_triton.pipeline.worker.messages import Load
from sie_triton.system.host.footprint import INTERPRETER_BYTES
from tests.support import hostile
from tests.support.loading import load_adapter

Case = tuple[str, str, hostile.Spoil]

SMALL_FILES = [*hostile.contents(), *hostile.numbers(), *hostile.types(), *hostile.paths()]


def named(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("base", "what", "spoil"), cases, ids=[f"{base}: {what}" for base, what, _ in cases])


@pytest.fixture(scope="module")
def sound(tmp_path_factory, minilm_directory) -> dict[str, Path]:
    return hostile.bases(tmp_path_factory.mktemp("sound"), minilm_directory)


def resolved(directory: Path) -> ModelSpec:
    return recognise(directory, "mine", {"weights_path": str(directory)}).resolve(Runtime())


def check_line(error: Exception, directory: Path) -> None:
    """Assert that the message is one line of readable length that names the directory."""
    message = str(error)
    message.encode()
    assert str(directory) in message
    assert len(message.splitlines()) == 1
    assert len(message) < 400 + message.count(str(directory)) * len(str(directory))


def test_the_directories_they_are_made_of_are_sound(sound):
    for directory in sound.values():
        load_processor(resolved(directory), directory)


@named(SMALL_FILES)
def test_a_broken_small_file(base, what, spoil, sound, tmp_path):
    directory = hostile.copied(sound[base], tmp_path / "model")
    spoil(directory)
    if f"{base}: {what}" in hostile.HARMLESS:
        assert replace(resolved(directory), weights="") == replace(resolved(sound[base]), weights="")
        return
    with pytest.raises(CatalogError) as caught:
        resolved(directory)
    check_line(caught.value, directory)


@named(list(hostile.broken_tokenizers()))
def test_a_broken_tokenizer(base, what, spoil, sound, tmp_path):
    directory = hostile.copied(sound[base], tmp_path / "model")
    spec = resolved(directory)
    spoil(directory)
    with pytest.raises(LoadError) as caught:
        load_processor(spec, directory)
    check_line(caught.value, directory)
    assert caught.value.is_permanent


@named(list(hostile.broken_weights()))
def test_broken_weights(base, what, spoil, sound, tmp_path):
    directory = hostile.copied(sound[base], tmp_path / "model")
    spec = resolved(directory)
    spoil(directory)
    with pytest.raises(LoadError) as caught:
        load_adapter(spec, directory)
    check_line(caught.value, directory)
    assert caught.value.is_permanent
    # The stage calls this before a worker can report the error.
    order = Load(spec.to_json(), directory, "cpu", tmp_path / "cache", tmp_path / "lock", 1, 1)
    assert expected_bytes(order) >= INTERPRETER_BYTES
