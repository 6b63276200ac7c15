"""Pytest plugin: start the files that take longest first, so that processes which share them end together.

tests/durations.json has the seconds of each file; `scripts/test --store-durations` measures and writes them. A file that
is not in it is taken to be long. Load with `-p tests.support.durations`, and with xdist's `--no-loadscope-reorder`.
"""

import json
from collections import defaultdict
from math import inf
from pathlib import Path

import pytest

STORED = Path(__file__).parents[1] / "durations.json"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--store-durations", action="store_true", help=f"write the seconds of each file to {STORED.name}")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("store_durations") and not hasattr(config, "workerinput"):  # xdist's workers report to this one
        config.pluginmanager.register(Durations())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    stored = stored_seconds()
    items.sort(key=lambda item: -stored.get(file_of(item.nodeid), inf))  # stable: tests of a file keep their order


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


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]
