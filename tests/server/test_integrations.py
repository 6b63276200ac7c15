"""docs/integrations.md: SIE's packages for frameworks and vector databases, each in an environment of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import BGE_M3, CROSS_ENCODER, GLINER
from tests.support.sdk import python

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text()
BLOCKS = {title.lower(): code for title, code in re.findall(r"^## (\w+)\n+```python\n(.*?)^```$", PAGE, re.M | re.S)}

# The page's models, and the small ones of the tests' server.
MODELS = {
    "BAAI/bge-m3": BGE_M3,
    "cross-encoder/ms-marco-MiniLM-L-6-v2": CROSS_ENCODER,
    "urchade/gliner_small-v2.1": GLINER,
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", BLOCKS)
def test_the_page_prints_what_it_says(name, door, tmp_path):
    if (base := python()) is None:
        pytest.skip("no Python 3.12: SIE's packages cannot be installed")
    subprocess.run([base, "-m", "venv", tmp_path], check=True)
    pip = [tmp_path / "bin" / "pip", "install", "-q", "--only-binary", ":all:", "--no-compile", f"sie-{name}==0.10.1"]
    subprocess.run(pip, check=True, stdout=sys.stderr)
    code = BLOCKS[name].replace("http://localhost:8080", door)
    for known, small in MODELS.items():
        code = code.replace(known, small)
    done = subprocess.run([tmp_path / "bin" / "python", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"^ *print\(.*\)  # (.*)$", code, re.M)
