"""A real Prometheus scrapes a server, and a cluster: each query of the dashboard returns data, and the rules load."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from typing import NamedTuple

import httpx
import pytest

from tests.support.controller import wait_for
from tests.support.counted_server import ENCODER, RERANKER, TOKEN, Counted
from tests.support.prometheus import ALERTS, DASHBOARD, EXPRESSIONS, Prometheus, needs, prometheus

PANELS = json.loads(DASHBOARD.read_text())["panels"]

# What the title of a row says whose queries are for clusters.
FOR_CLUSTERS = "no data for one server"


class Query(NamedTuple):
    """A query of the dashboard, with the title of its row."""

    row: str
    expression: str


def queries() -> Iterator[tuple[str, Query]]:
    row = ""
    for panel in PANELS:
        row = panel["title"] if panel["type"] == "row" else row
        for target in panel.get("targets", ()):
            yield f"{panel['title']}, {target['refId']}", Query(row, target["expr"])


QUERIES = dict(queries())

# Names of metrics in an expression of Prometheus; those that it makes itself stand alone. Those of clusters only.
METRIC = re.compile(r"\b(?:sie|nv)_\w+\b(?!:)")
OF_CLUSTERS = ("sie_gateway_", "sie_sidecar_", "sie_config_")

# Series in an expression, and their labels that exclude values, which a server without faults may have alone.
SERIES = re.compile(r"\b(?:(?:sie|nv)_\w+|up)\b(?:\{[^}]*\})?")
EXCLUDING = re.compile(r"\w+!~?\"[^\"]*\"")


class Watched(NamedTuple):
    """A server or cluster, and the Prometheus that scrapes it."""

    counted: Counted
    prometheus: Prometheus

    def has_data(self, expression: str) -> bool:
        """Make traffic, and return True if an expression has a value that is a number."""
        self.counted.be_busy()
        return bool(self.prometheus.query(expression))


Watching = Callable[[str], Watched]


@pytest.fixture(scope="module")
def watched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watching]:
    """Return a function that returns a server or a cluster, by the name of its fixture, with its Prometheus."""
    needs("prometheus")
    with ExitStack() as stack:

        @cache
        def watched(kind: str) -> Watched:
            counted = request.getfixturevalue(kind)
            running = stack.enter_context(prometheus(tmp_path_factory.mktemp(kind), counted.targets, TOKEN))
            wait_for(lambda: running.query('sum(up{job="sie"})') == [len(counted.targets)])
            counted.be_busy()
            if kind == "served":
                counted.evict(ENCODER)
            else:
                rerank(counted)  # that model is idle from now on
            return Watched(counted, running)

        yield watched


def rerank(counted: Counted) -> None:
    body = {"model": RERANKER, "query": "a", "documents": ["b"]}
    counted.http.post("/v1/rerank", json=body).raise_for_status()


def test_every_metric_of_the_dashboard_and_the_rules_exists(served):
    served.be_busy()
    served.evict(ENCODER)
    served.encode("a")
    expressions = [query.expression for query in QUERIES.values()] + [*EXPRESSIONS.values()]
    used = {name for expression in expressions for name in METRIC.findall(expression)}
    assert len(used) > 25
    of_servers = {name for name in used if not name.startswith(OF_CLUSTERS)}

    def missing() -> set[str]:
        return plain(of_servers) - plain(sample.name for family in served.families() for sample in family.samples)

    with suppress(AssertionError):
        wait_for(lambda: not missing())
    assert missing() == set()


def plain(names: Iterable[str]) -> set[str]:
    """Return the names without the ending that the parser gives to every counter."""
    return {name.removesuffix("_total") for name in names}


CASES = [
    (kind, title)
    for kind in ("served", "cluster")
    for title, query in QUERIES.items()
    if kind == "cluster" or FOR_CLUSTERS not in query.row
]


@pytest.mark.parametrize(("kind", "title"), CASES)
def test_each_query_of_the_dashboard_returns_data(watched, kind, title):
    expression = QUERIES[title].expression.replace("$__rate_interval", "1m").replace("$model", ".*")
    wait_for(lambda: watched(kind).has_data(expression))


@pytest.mark.parametrize("kind", ["served", "cluster"])
def test_the_rules_load_and_no_alert_fires_without_a_reason(watched, kind):
    running = watched(kind).prometheus
    assert running.rules().keys() == EXPRESSIONS.keys()
    wait_for(lambda: watched(kind).has_data("sie:request_duration_seconds:p99_1m"))
    rules = running.rules()
    assert {rule["health"] for rule in rules.values()} == {"ok"}
    assert [name for name, rule in rules.items() if rule.get("state") == "firing"] == []


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_watches_series_that_a_cluster_has(watched, alert):
    series = [EXCLUDING.sub("", found) for found in SERIES.findall(ALERTS[alert])]
    assert series
    for each in series:
        wait_for(lambda each=each: watched("cluster").has_data(each))


def test_a_sidecar_gives_metrics_for_a_token_only(cluster):
    *_, sidecar = cluster.targets
    assert httpx.get(f"http://{sidecar}/metrics").status_code == 401
    assert httpx.get(f"http://{sidecar}/healthz").status_code == 200
