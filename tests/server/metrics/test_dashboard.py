"""A real Prometheus scrapes a cluster: each query of the dashboard returns data, and the rules load."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

import httpx
import pytest

from tests.support.controller import wait_for
from tests.support.counted_server import ENCODER, RERANKER, TOKEN, Counted
from tests.support.prometheus import ALERTS, DASHBOARD, EXPRESSIONS, Prometheus, prometheus

PANELS = json.loads(DASHBOARD.read_text())["panels"]

QUERIES = {
    f"{panel['title']}, {target['refId']}": target["expr"] for panel in PANELS for target in panel.get("targets", ())
}

# Names of metrics in an expression of Prometheus; those that it makes itself stand alone. Those of clusters only.
METRIC = re.compile(r"\b(?:sie|nv)_\w+\b(?!:)")
OF_CLUSTERS = ("sie_gateway_", "sie_sidecar_", "sie_config_")

# Series in an expression, and their labels that exclude values, which a server without faults may have alone.
SERIES = re.compile(r"\b(?:(?:sie|nv)_\w+|up)\b(?:\{[^}]*\})?")
EXCLUDING = re.compile(r"\w+!~?\"[^\"]*\"")


class Watched(NamedTuple):
    """A cluster, and the Prometheus that scrapes it."""

    counted: Counted
    prometheus: Prometheus

    def has_data(self, expression: str) -> bool:
        """Make traffic, and return True if an expression has a value that is a number."""
        self.counted.be_busy()
        return bool(self.prometheus.query(expression))


@pytest.fixture(scope="module")
def watched(cluster: Counted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with prometheus(tmp_path_factory.mktemp("cluster"), cluster.targets, TOKEN) as running:
        wait_for(lambda: running.query('sum(up{job="sie"})') == [len(cluster.targets)])
        cluster.be_busy()
        rerank(cluster)  # that model is idle from now on
        yield Watched(cluster, running)


def rerank(counted: Counted) -> None:
    body = {"model": RERANKER, "query": "a", "documents": ["b"]}
    counted.http.post("/v1/rerank", json=body).raise_for_status()


def test_every_metric_of_the_dashboard_and_the_rules_exists(served):
    served.be_busy()
    served.evict(ENCODER)
    served.encode("a")
    expressions = [*QUERIES.values(), *EXPRESSIONS.values()]
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


@pytest.mark.parametrize("title", QUERIES)
def test_each_query_of_the_dashboard_returns_data(watched, title):
    expression = QUERIES[title].replace("$__rate_interval", "1m").replace("$model", ".*")
    wait_for(lambda: watched.has_data(expression))


def test_the_rules_load_and_no_alert_fires_without_a_reason(watched):
    running = watched.prometheus
    assert running.rules().keys() == EXPRESSIONS.keys()
    wait_for(lambda: watched.has_data("sie:request_duration_seconds:p99_1m"))
    rules = running.rules()
    assert {rule["health"] for rule in rules.values()} == {"ok"}
    assert [name for name, rule in rules.items() if rule.get("state") == "firing"] == []


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_watches_series_that_a_cluster_has(watched, alert):
    series = [EXCLUDING.sub("", found) for found in SERIES.findall(ALERTS[alert])]
    assert series
    for each in series:
        wait_for(lambda each=each: watched.has_data(each))


def test_a_sidecar_gives_metrics_for_a_token_only(cluster):
    *_, sidecar = cluster.targets
    assert httpx.get(f"http://{sidecar}/metrics").status_code == 401
    assert httpx.get(f"http://{sidecar}/healthz").status_code == 200
