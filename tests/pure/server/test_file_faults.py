"""Messages on the launcher's terminal about model files that change while it serves."""

import pytest

from sie_triton.records.serving_file import Served, Serving
from sie_triton.server.terminal import FileFaults


@pytest.fixture
def serving(tmp_path) -> Serving:
    models = {"my/a": Served("/m/a.yaml", "2026-01-01T00:00:00+00:00")}
    made = Serving((), {"data_dir": str(tmp_path)}, "/", models=models, problems={"/m/old.yaml": "/m/old.yaml: bad"})
    made.write()
    return made


def test_a_file_that_becomes_invalid_or_valid_is_reported_once(tmp_path, serving):
    said: list[str] = []
    faults = FileFaults(tmp_path, said.append)
    faults.look()
    assert said == []  # the start has said it
    wrong = {"/m/a.yaml": "/m/a.yaml: dim: no\n/m/a.yaml: tasks: no", "/m/b.yaml": "/m/b.yaml: not valid YAML"}
    serving.updated(problems=wrong).write()
    for _ in range(2):
        faults.look()
    assert said == [
        "not changed: /m/a.yaml: dim: no",
        "not changed: /m/a.yaml: tasks: no",
        "not served: /m/b.yaml: not valid YAML",
        "valid again: /m/old.yaml",
    ]
    (tmp_path / "serving.json").unlink()
    faults.look()
    assert len(said) == 4
