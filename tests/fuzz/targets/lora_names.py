"""LoRA adapters by name: names in requests, and the file with the adapters that were added to a running server."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from sie_triton.errors import InputError
from sie_triton.models import known_loras
from tests.fuzz.damage import damaged, one
from tests.fuzz.requests import WRITTEN
from tests.fuzz.target import Target, check_line
from tests.fuzz.trees import PLAIN, changed, to_json
from tests.support.stages import spec

NAMES = (
    "banking",
    "org/name",
    "org/name@v1",
    "",
    "/",
    "../x",
    "a" * 300,
    *WRITTEN[:6],
    "hub://org/name",
    "package://x/y",
)


@contextmanager
def lora_names(directory: Path) -> Iterator[Target]:
    made = spec(model="org/m", loras={"own": "./own"})
    made = replace(made, runtime=replace(made.runtime, loras_dir=str(directory), allow_client_lora=True))
    path = known_loras.added_path(directory, made.model)
    listed: list[Any] = [{"banking": "hub://org/banking", "x": "/models/x"}]
    files = st.one_of(changed(listed).map(to_json), damaged([to_json(listed[0])]))
    names = st.one_of(one(NAMES), one([each for each in PLAIN if isinstance(each, str)]), st.text(max_size=20))

    def run(case: tuple[bytes, str]) -> None:
        content, name = case
        path.write_bytes(content)
        known = known_loras.KnownLoras(made)
        known.names()
        known.holds(name)
        for check in (known_loras.check_name, known_loras.source_of):
            try:
                check(name)
            except ValueError as exc:
                check_line(exc, 300, "must be")
        assert isinstance(known.source(name), str)

    yield Target(st.tuples(files, names), run, (InputError,))
