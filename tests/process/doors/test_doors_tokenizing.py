"""/tokenize and /decode of text-embeddings-inference: the tokens are those of the tokenizers library."""

from dataclasses import replace

import pytest
import transformers

from sie_triton.contract.spec import Runtime
from sie_triton.doors import tokenizing
from sie_triton.doors.model_choice import Capable
from sie_triton.records.tokenizer_links import publish_tokenizer, published_tokenizer
from tests.support.doors import door_of, post
from tests.support.stages import spec
from tests.support.tokenizers import save_bert, save_qwen2, save_roberta, save_xlm_roberta

TEXTS = ["Roses climb up.", "Größe naïve 日本語 😀", " two  spaces\n", "[CLS] <s> x"]
MODEL = spec(model="org/m")


@pytest.fixture
def door(tmp_path, monkeypatch):
    """A door whose only model is MODEL, and a function that gives it a tokenizer."""

    async def only(self):
        return "dense vectors", MODEL

    monkeypatch.setattr(Capable, "default", only)
    door, backend = door_of(data_dir=tmp_path)
    status = door.settings.status_dir
    status.mkdir(parents=True, exist_ok=True)

    def give(directory):
        publish_tokenizer(status, MODEL, directory)

    return door, backend, give


@pytest.mark.parametrize("save", [save_bert, save_roberta, save_xlm_roberta, save_qwen2])
def test_tokens_and_texts_are_those_of_the_library(door, tmp_path, minilm_directory, save):
    (home := tmp_path / "model").mkdir()
    save(home, minilm_directory)
    door, _, give = door
    give(home)
    library = transformers.AutoTokenizer.from_pretrained(home).backend_tokenizer
    library.no_padding()
    library.no_truncation()
    for is_special in (True, False):
        found = post(door, {"inputs": TEXTS, "add_special_tokens": is_special}, "/tokenize").json()
        for text, tokens in zip(TEXTS, found, strict=True):
            expected = library.encode(text, add_special_tokens=is_special)
            assert [each["id"] for each in tokens] == expected.ids
            for token, name, special, (start, stop) in zip(
                tokens, expected.tokens, expected.special_tokens_mask, expected.offsets, strict=True
            ):
                assert token["special"] == bool(special)
                assert token["text"] == (name if special else text[start:stop])
                part = text.encode()[token["start"] : token["stop"]].decode() if not special else name
                assert part == token["text"]
        ids = [[each["id"] for each in tokens] for tokens in found]
        for skips in (True, False):
            texts = post(door, {"ids": ids, "skip_special_tokens": skips}, "/decode").json()
            assert texts == [library.decode(row, skip_special_tokens=skips) for row in ids]
    assert post(door, {"ids": ids[0]}, "/decode").json() == [library.decode(ids[0])]
    assert len(post(door, {"inputs": TEXTS[0]}, "/tokenize").json()) == 1


def test_long_texts_are_not_truncated(door, tmp_path, minilm_directory):
    (home := tmp_path / "model").mkdir()
    save_bert(home, minilm_directory)
    door, _, give = door
    give(home)
    (tokens,) = post(door, {"inputs": "rose " * 10_000}, "/tokenize").json()
    assert len(tokens) == 10_002


def test_a_first_request_loads_the_tokenizer(door, tmp_path, minilm_directory):
    (home := tmp_path / "model").mkdir()
    save_bert(home, minilm_directory)
    door, backend, give = door
    refused = post(door, {"inputs": "x"}, "/tokenize")
    assert (refused.status_code, len(backend.asked)) == (424, 1)
    encode = backend.encode

    async def loading(*given):
        give(home)
        return await encode(*given)

    backend.encode = loading
    assert [post(door, {"inputs": "x"}, "/tokenize").status_code for _ in range(2)] == [200, 200]
    assert len(backend.asked) == 2


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/tokenize", {"inputs": "x" * (tokenizing.MAX_CHARACTERS + 1)}, "inputs: has 262145 characters"),
        ("/tokenize", {"inputs": "x", "prompt_name": "query"}, "prompt_name: is not read here"),
        ("/tokenize", {"inputs": [[1, 2]]}, "inputs[0]: must be a string"),
        ("/decode", {"ids": [1] * (tokenizing.MAX_CHARACTERS + 1)}, "ids: has 262145 characters or ids"),
        ("/decode", {"ids": [[101], [2**31]]}, "ids[1]: 2147483648 is no id"),
        ("/decode", {"ids": [-1]}, "ids[0][0]: must be"),
        ("/decode", {"ids": []}, "ids: is empty"),
        ("/decode", {"ids": [[]]}, "ids[0]: is empty"),
        ("/decode", {"ids": "x"}, "ids: must be a list"),
        ("/decode", {"ids": [True]}, "ids[0][0]: must be"),
    ],
)
def test_invalid_bodies_are_refused(door, tmp_path, minilm_directory, path, body, message):
    (home := tmp_path / "model").mkdir()
    save_bert(home, minilm_directory)
    door, _, give = door
    give(home)
    refused = post(door, body, path)
    assert refused.status_code == 422
    assert refused.json()["error"].startswith(message)


def test_the_timeout_of_a_request_counts(door):
    door, backend, _ = door
    backend.seconds = 60
    assert post(door, {"inputs": "x"}, "/tokenize", headers={"X-Request-Timeout": "0.1"}).status_code == 504
    assert post(door, {"inputs": "x"}, "/tokenize", headers={"X-Request-Timeout": "3601"}).status_code == 422


def test_a_gateway_has_no_tokenizers(door):
    door, backend, _ = door
    backend.is_beside_server = False
    assert post(door, {"inputs": "x"}, "/tokenize").status_code == 404
    assert not backend.asked


def test_few_tokenizers_stay_in_memory(tmp_path, minilm_directory):
    tokenizers = tokenizing.Tokenizers(tmp_path)
    for name in ("a", "b", "a", "c"):
        (home := tmp_path / name).mkdir(exist_ok=True)
        save_bert(home, minilm_directory)
        tokenizers._tokenizer(home)
    assert [path.name for path in tokenizers._opened] == ["a", "c"]


def test_a_tokenizer_is_found_by_the_model_as_its_file_describes_it(tmp_path):
    publish_tokenizer(tmp_path, MODEL, tmp_path / "one")
    publish_tokenizer(tmp_path, replace(MODEL, runtime=Runtime(device="cuda")), tmp_path / "two")
    assert published_tokenizer(tmp_path, MODEL) == tmp_path / "two"
    assert published_tokenizer(tmp_path, replace(MODEL, weights="/other")) is None
