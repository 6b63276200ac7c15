"""Pytest plugin: how processes share the files of tests.

Each takes a file at a time, or the files that share a server or what is as costly. The longest start first: the
processes end together, and files that wait for servers run beside those that compute.

tests/durations.json has the seconds of each file; `scripts/test --store-durations` measures and writes them. A file
that is not in it is taken to be long. Load with `-p tests.support.durations`, and `--no-loadscope-reorder` of xdist.
"""

import json
from collections import defaultdict
from math import inf
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

STORED = Path(__file__).parents[1] / "durations.json"

# Folders and files that share a server, a fork server or an environment, which is then made once.
TOGETHER = (
    ("tests/residency/",),
    ("tests/server/families/", "tests/process/models/environments/"),
    ("tests/process/pipeline/worker/", "tests/process/pipeline/stages/test_lora_stage.py"),
    ("tests/server/metrics/",),
    ("tests/server/page/",),
    (
        "tests/server/sdk/",
        *(f"tests/server/test_{name}" for name in ("body_size", "bulk_commands", "client", "door", "encode", "errors")),
        *(f"tests/server/test_{name}" for name in ("eval", "extract", "gateway", "images", "integrations", "lora")),
        "tests/server/test_misfit",
        *(f"tests/server/test_{name}" for name in ("objects", "openapi", "outputs", "perf", "processes", "reading")),
        *(f"tests/server/test_{name}" for name in ("score", "slots", "sounds", "steps")),
    ),
)


class BySharedServer(LoadFileScheduling):
    """xdist's scheduler, by files that share a server. It ends even if a worker dies with its last tests."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(file_of(nodeid))

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test that ended a dead worker, and queue the tests after it.

        xdist also queues files that are done. A worker that gets only such a file waits for ever.
        """
        files = self.assigned_work.pop(node)
        left = [nodeid for tests in files.values() for nodeid, is_done in tests.items() if not is_done]
        for nodeid in left[1:]:
            self.workqueue.setdefault(self._split_scope(nodeid), {})[nodeid] = False
        for other in self.assigned_work:
            self._reschedule(other)
        return left[0] if left else None

    def _reschedule(self, node: WorkerController) -> None:
        """Give a worker at least two tests: it starts one when it has the next, or is told to end."""
        is_idle = True
        while is_idle and not node.shutting_down:
            super()._reschedule(node)
            is_idle = self._pending_of(self.assigned_work[node]) < 2


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> BySharedServer:
    return BySharedServer(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--store-durations", action="store_true", help=f"write the seconds of each file to {STORED.name}")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("store_durations") and not hasattr(
        config, "workerinput"
    ):  # a worker of xdist reports to this process
        config.pluginmanager.register(Durations())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not hasattr(config, "workerinput"):  # one process has nothing to share
        return
    stored = stored_seconds()
    files = dict.fromkeys(file_of(item.nodeid) for item in items)
    scopes: defaultdict[str, float] = defaultdict(float)
    for file in files:
        scopes[scope_of(file)] += stored.get(file, inf)
    # The files of a folder in a row: they may share a fixture of the package.
    place = {
        file: (-scopes[scope_of(file)], scope_of(file), file.rpartition("/")[0], -stored.get(file, inf))
        for file in files
    }
    items.sort(key=lambda item: place[file_of(item.nodeid)])  # stable: tests of a file keep their order


class Durations:
    """Adds up the seconds of each file's setups, tests and teardowns."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        every = {**stored_seconds(), **{file: round(seconds, 1) for file, seconds in self._seconds.items()}}
        there = {file: seconds for file, seconds in sorted(every.items()) if (STORED.parents[1] / file).exists()}
        STORED.write_text(json.dumps(there, indent=0) + "\n")


def stored_seconds() -> dict[str, float]:
    return json.loads(STORED.read_text()) if STORED.exists() else {}


def scope_of(file: str) -> str:
    """Return what one process takes at once: the first name of a group in TOGETHER, else the file itself."""
    return next((group[0] for group in TOGETHER if file.startswith(group)), file)


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]
