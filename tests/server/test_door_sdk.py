"""SIE's own SDK at the door, in a Python of its own: it wants 3.12 and numpy 2."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sie_triton import SIEClient
from tests.conftest import BGE_M3, CLIP, COLBERT, CROSS_ENCODER, GLINER, MUVERA
from tests.support.pictures import pictures

SDK = "sie-sdk==0.10.1"

# What a user writes: the address is all that is ours.
PROGRAM = """
import json, logging, sys, warnings
import numpy as np
from sie_sdk import SIEClient
from sie_sdk.client.errors import RequestError

url, model, ranker, finder, seer, late, picture, out = sys.argv[1:]
told, heard = {}, []
logging.captureWarnings(True)

class Heard(logging.Handler):
    def emit(self, record):
        heard.append(record.getMessage())

logging.getLogger().addHandler(Heard())
with SIEClient(url) as client:
    types = ["dense", "sparse", "multivector"]
    items = [{"text": "how do vines climb?", "id": "a"}, {"text": "b"}]
    found = client.encode(model, items, output_types=types, is_query=True)
    one = client.encode(model, {"text": "b"}, output_types=["dense"], output_dtype="int8")
    told["default"] = [name for name in types if name in client.encode(model, {"text": "b"})]
    muvera = [client.encode(late, {"text": "b"}, **types) for types in ({}, {"output_types": ["dense"]})]
    told["muvera"] = [len(each["dense"]) for each in muvera]
    told["request"] = one["request"]
    seen = client.encode(seer, {"images": [{"data": open(picture, "rb").read(), "format": "png"}]})
    arrays = [(r["dense"], r["sparse"]["indices"], r["sparse"]["values"], r["multivector"]) for r in found]
    np.savez(out, *[array for each in arrays for array in each],
             one["dense"], seen["dense"])
    told["ids"] = [each.get("id") for each in found]
    told["scores"] = client.score(ranker, {"text": "vines"}, [{"text": "vines climb"}, {"text": "no"}])["scores"]
    told["entities"] = client.extract(finder, {"text": "Ada lived in London."}, labels=["person", "city"],
                                      options={"threshold": 0.1})["entities"]
    told["models"] = sorted(each["name"] for each in client.list_models() if ":" not in each["name"])
    told["model"] = client.get_model(model)["dims"]
    told["status"] = next(iter(client.watch()))["ready"]
    try:
        client.encode("no/such", {"text": "a"})
    except RequestError as exc:
        told["error"] = exc.code
    for name, call in {
        "input": lambda: client.encode(model, {"text": "a"}, output_types=["no"]),
        "option": lambda: client.score(ranker, {"text": "a"}, [{"text": "b"}], options={"no_such": 1}),
        "gateway": client.get_capacity,
    }.items():
        try:
            call()
        except RequestError as exc:
            told[name] = exc.code
told["heard"] = heard
print(json.dumps(told))
"""


def python() -> Path | None:
    """Python of 3.12 or later that can make environments."""
    found = [shutil.which(f"python3.{minor}") for minor in (12, 13, 14)]
    of_pyenv = sorted(Path.home().glob(".pyenv/versions/3.1[234]*/bin/python"))
    for path in (os.environ.get("SIE_SDK_PYTHON"), *found, *of_pyenv):
        if path and subprocess.run([path, "-c", "import ensurepip, venv"], capture_output=True).returncode == 0:
            return Path(path)
    return None


@pytest.fixture(scope="module")
def sdk(tmp_path_factory) -> Path:
    """The interpreter of an environment that has it."""
    base = python()
    if base is None:
        pytest.skip("no Python 3.12 or later with venv on PATH, nor in SIE_SDK_PYTHON: sie-sdk cannot be installed")
    directory = tmp_path_factory.mktemp("sdk")
    subprocess.run([base, "-m", "venv", directory], check=True)
    pip = [directory / "bin" / "pip", "install", "-q", "--only-binary", ":all:", SDK]
    if subprocess.run(pip, stdout=sys.stderr).returncode:
        pytest.skip(f"pip cannot install {SDK}")
    return directory / "bin" / "python"


def test_the_sdk_works_by_changing_its_address(sdk, door, server, tmp_path):
    picture, out = tmp_path / "a.png", tmp_path / "out.npz"
    picture.write_bytes(pictures()[0])
    arguments = [door, BGE_M3, CROSS_ENCODER, GLINER, CLIP, COLBERT, picture, out]
    done = subprocess.run([sdk, "-c", PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told, arrays = json.loads(done.stdout), list(np.load(out).values())
    with SIEClient(server.grpc) as client:
        types = ["dense", "sparse", "multivector"]
        expected = client.encode(BGE_M3, ["how do vines climb?", "b"], output_types=types, is_query=True)
        one = client.encode(BGE_M3, "b", output_types=["dense"], output_dtype="int8")["dense"]
        seen = client.encode(CLIP, {"image": picture})["dense"]
        scores = client.score(CROSS_ENCODER, "vines", ["vines climb", "no"])["scores"]
        entities = client.extract(GLINER, "Ada lived in London.", ["person", "city"], threshold=0.1)["entities"]
        names = client.list_models()
    flat = [v for r in expected for v in (r["dense"], r["sparse"]["indices"], r["sparse"]["values"], r["multivector"])]
    for found, wanted in zip(arrays, [*flat, one, seen], strict=True):
        assert found.dtype == wanted.dtype
        assert np.array_equal(found, wanted)
    assert (told["ids"], told["scores"], told["models"]) == (["a", None], scores, names)
    assert [each["text"] for each in told["entities"]] == [each["text"] for each in entities]
    assert told["model"] == {"dense": 64, "sparse": 30522, "multivector": 32}
    assert told["status"] is True
    assert told["default"] == ["dense"]
    assert told["muvera"] == [MUVERA["final_projection_dim"]] * 2
    assert told["request"]["usage"] == {"input_tokens": 3}
    assert told["request"]["id"]
    codes = {name: told[name] for name in ("error", "input", "option", "gateway")}
    invalid = dict.fromkeys(("input", "option"), "INVALID_INPUT")
    assert codes == {"error": "MODEL_NOT_FOUND", **invalid, "gateway": "not_gateway"}
    assert [line for line in told["heard"] if "version" in line] == []
