"""LoRA adapters as a worker loads them beside a model."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

from sie_triton.checkpoints.lora import LoraFiles
from sie_triton.errors import LoadError
from sie_triton.models import known_loras
from tests.fuzz.damage import damaged
from tests.fuzz.models import LORAS, saved_models
from tests.fuzz.quiet import one_thread
from tests.fuzz.target import Target, check_line
from tests.fuzz.targets.checkpoints import headers_of, quickly_recognised, resolved
from tests.fuzz.trees import changed, to_json

CONFIG, WEIGHTS = known_loras.CONFIG_FILE, known_loras.WEIGHTS_FILE

# Patterns of names of modules, which are regular expressions.
PATTERNS = (
    "^a$",
    "(a*)*",
    "a|b",
    "[",
    "\\w*",
    "a" * 300,
    ".*.*.*",
    "[a-z]*$",
    "0.output.dense",
    "^$",
    "|" * 200,
    "a^b$c",
)


@contextmanager
def adapters(directory: Path) -> Iterator[Target]:
    from tests.support.loading import load_adapter

    models = saved_models(directory)
    saved, path = models / "loras", directory / "lora"
    with quickly_recognised():
        encoder = load_adapter(resolved(models / "plain"), models / "plain").encoder
    cases = []
    for name in LORAS:
        config = json.loads((saved / name / CONFIG).read_text())
        others = [{**config, key: {pattern: 4}} for key in ("rank_pattern", "alpha_pattern") for pattern in PATTERNS]
        texts = [changed([config, config, config, *others]).map(to_json), damaged([to_json(config)])]
        cases += [st.tuples(st.just(name), st.just(CONFIG), each) for each in (*texts, texts[0])]
        cases.append(st.tuples(st.just(name), st.just(WEIGHTS), headers_of((saved / name / WEIGHTS).read_bytes())))

    def run(case: tuple[str, str, bytes]) -> None:
        name, file, content = case
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(saved / name, path)
        (path / file).write_bytes(content)
        try:
            files = LoraFiles.read(path)
            files.rank_of("encoder.layer.0.output.dense")
            files.scale_of("encoder.layer.0.output.dense")
            encoder.add_lora("lora", path)
        except LoadError as exc:
            check_line(exc, 5000)
            raise
        finally:
            encoder.remove_lora("lora")

    with one_thread():
        yield Target(st.one_of(cases), run, (LoadError,))
