"""Speech through a server: responses equal the family's results in process, by SIEClient and by `openai`."""

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from sie_triton import InputError
from tests.conftest import WHISPER
from tests.support.readers import Reader, data
from tests.support.sounds import sounds

FILES = sounds((0.4, 5.3, 1.0))
ASKED = [{}, {"language": "de", "task": "translate"}, {"max_new_tokens": 5}]


@pytest.fixture(scope="module")
def reader(server):
    return Reader("whisper", server.settings.models_dir.parent / "whisper", inputs=("audio",))


def test_concurrent_requests_get_their_results(client, reader):
    items = [{"audio": file} for file in FILES]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda asked: client.extract(WHISPER, items, options=asked), ASKED * 2))
    expected = [data(reader(FILES, **asked)) for asked in ASKED]
    assert [data(each) for each in found] == expected * 2
    assert all(each["segments"] for each in expected[0])


def test_an_unreadable_sound_is_named(client):
    with pytest.raises(InputError) as failed:
        client.extract(WHISPER, [{"audio": FILES[0]}, {"audio": b"no sound"}])
    assert failed.value.field == "audio[1]"


def test_the_openai_package(door, reader):
    (expected,) = data(reader(FILES[1:2], language="de", instruction="red"))
    (english,) = data(reader(FILES[1:2], task="translate"))
    with openai.OpenAI(base_url=f"{door}/v1", api_key="none", max_retries=0) as client:
        audio, asked = client.audio, {"model": WHISPER, "file": ("a.wav", FILES[1])}
        german = {**asked, "language": "de", "prompt": "red", "temperature": 0}
        assert audio.transcriptions.create(**german).text == expected["text"]
        told = audio.transcriptions.create(
            **german, response_format="verbose_json", timestamp_granularities=["segment"]
        )
        assert (told.text, told.language, told.duration) == (expected["text"], "de", 5.3)
        segments = [{"start": each.start, "end": each.end, "text": each.text} for each in told.segments]
        assert segments == expected["segments"]
        assert audio.transcriptions.create(**german, response_format="vtt").startswith("WEBVTT")
        assert audio.translations.create(**asked).text == english["text"]
        with pytest.raises(openai.BadRequestError) as failed:
            audio.transcriptions.create(**{**asked, "language": "xx"})
        assert failed.value.param == "language"
        with pytest.raises(openai.BadRequestError) as failed:
            audio.transcriptions.create(**{**asked, "file": ("a.wav", b"no sound")})
        assert failed.value.param == "file"
