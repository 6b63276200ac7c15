"""Model files of an object store: copied, followed, bounded, and kept while the store is away."""

from pathlib import Path

import obstore
import pytest

from sie_triton.errors import ServerError, SettingsError
from sie_triton.models.weights.object_store import StoreError
from sie_triton.pipeline.limits import MirrorLimits
from sie_triton.pipeline.render.models_mirror import MIRROR, Mirror, kept_in_sync, mirrored
from sie_triton.settings import read_settings
from tests.support.controller import wait_for


def contents(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir()}


@pytest.fixture
def mirror(s3, tmp_path) -> Mirror:
    for name in ("a.yaml", "b.yml", "README.md", "old/c.yaml", ".hidden.yaml"):
        s3.write(name, f"of {name}".encode())
    return Mirror(s3.url, tmp_path / MIRROR)


def test_model_files_are_followed(mirror, s3, tmp_path):
    copy = tmp_path / MIRROR
    mirror.sync()
    assert contents(copy) == {"a.yaml": "of a.yaml", "b.yml": "of b.yml"}
    unchanged = (copy / "b.yml").stat()
    s3.write("a.yaml", b"changed")
    s3.write("d.yaml", b"new")
    obstore.delete(s3.client(), "b.yml")
    mirror.sync()
    assert contents(copy) == {"a.yaml": "changed", "d.yaml": "new"}
    s3.write("b.yml", b"of b.yml")
    mirror.sync()
    assert contents(copy)["b.yml"] == "of b.yml"
    assert unchanged.st_size == (copy / "b.yml").stat().st_size
    s3.asked.clear()
    mirror.sync()
    assert s3.num_asked("yaml") == 0, "an unchanged file is not read again"


def test_bundles_are_followed(mirror, s3, tmp_path):
    bundles = tmp_path / MIRROR / "bundles"
    s3.write("bundles/a.yaml", b"models: [a/b]")
    s3.write("bundles/deeper/b.yaml", b"models: [a/b]")
    mirror.sync()
    assert contents(bundles) == {"a.yaml": "models: [a/b]"}
    obstore.delete(s3.client(), "bundles/a.yaml")
    mirror.sync()
    assert contents(bundles) == {}


def test_files_that_are_the_same_are_not_written_again(mirror, s3, tmp_path):
    mirror.sync()
    before = (tmp_path / MIRROR / "a.yaml").stat()
    Mirror(s3.url, tmp_path / MIRROR).sync()  # of another start
    after = (tmp_path / MIRROR / "a.yaml").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_store_that_is_away_keeps_the_last_state_and_is_reported_once(mirror, s3, tmp_path):
    said: list[str] = []
    mirror.keep_in_sync(said.append)
    s3.away = True
    for _ in range(3):
        mirror.keep_in_sync(said.append)
    (line,) = said
    assert line.startswith(f"model files: {s3.url}")
    assert line.endswith("their last state stays in service")
    assert "of-the-test" not in line
    assert set(contents(tmp_path / MIRROR)) == {"a.yaml", "b.yml"}
    s3.away = False
    mirror.keep_in_sync(said.append)
    assert said[1:] == [f"model files: {s3.url} can be read again"]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (MirrorLimits(num_objects=3), "more than 3 objects"),
        (MirrorLimits(num_files=1), "2 model files of .* at most 1 and"),
        (MirrorLimits(all_bytes=5), "at most 2000 and 5 bytes"),
        (MirrorLimits(file_bytes=5), "at most 5 are allowed"),
    ],
)
def test_a_store_is_bounded(mirror, tmp_path, limits, said):
    mirror._limits = limits
    with pytest.raises(StoreError, match=said):
        mirror.sync()
    assert not (tmp_path / MIRROR).exists()


def test_a_setting_may_be_a_url(mirror, s3, tmp_path, monkeypatch):
    monkeypatch.setenv("SIE_MODELS_DIR", f"{s3.url}/")
    settings = read_settings(data_dir=tmp_path, device="cpu")
    assert settings.models_url == s3.url
    found = mirrored(settings)
    assert (found.models_dir, found.models_url) == (tmp_path / MIRROR, "")
    s3.away = True
    assert mirrored(settings).models_dir == tmp_path / MIRROR, "the copy of the last start"
    with pytest.raises(ServerError, match=f"models_dir: {s3.url}"):
        mirrored(read_settings(data_dir=tmp_path / "other", device="cpu"))
    for wrong in ("s3://key:secret@bucket/x", "s3://bucket?token=secret@x", "file://relative"):
        with pytest.raises(SettingsError, match="without credentials") as told:
            read_settings(models_dir=wrong)
        assert "secret" not in str(told.value)
    assert read_settings(models_dir=tmp_path).models_url == ""


def test_a_directory_may_be_a_url(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.yaml").write_text("text")
    settings = read_settings(data_dir=tmp_path, models_dir=f"file://{tmp_path}/mine", device="cpu")
    assert contents(mirrored(settings).models_dir) == {"a.yaml": "text"}
    with pytest.raises(ServerError):
        mirrored(read_settings(data_dir=tmp_path / "o", models_dir=f"file://{tmp_path}/no", device="cpu"))
    assert not (tmp_path / "no").exists()


def test_a_running_server_compares_again_and_again(mirror, s3, tmp_path):
    settings = read_settings(data_dir=tmp_path, models_dir=s3.url, device="cpu")
    with kept_in_sync(settings, print, MirrorLimits(sync_s=0.05)):
        wait_for(lambda: (tmp_path / MIRROR / "a.yaml").exists())
        s3.write("late.yaml", b"text")
        wait_for(lambda: (tmp_path / MIRROR / "late.yaml").exists())
