"""A real Prometheus scrapes the server: each query of the dashboard returns data, and the rules load."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from benchmarks.ports import free_ports
from tests.support.controller import wait_for
from tests.support.counted_server import ENCODER, TOKEN, Served

DOCKER = Path(__file__).parents[3] / "docker"
DASHBOARD = json.loads((DOCKER / "grafana" / "dashboard.json").read_text())
RULES = DOCKER / "prometheus" / "rules.yaml"

QUERIES = {
    f"{panel['title']}, {target['refId']}": target["expr"]
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
}
EXPRESSIONS = {
    rule.get("alert") or rule["record"]: rule["expr"]
    for g in yaml.safe_load(RULES.read_text())["groups"]
    for rule in g["rules"]
}

# Names of metrics in an expression of Prometheus; those that it makes itself stand alone.
METRIC = re.compile(r"\b(?:sie|nv)_\w+\b(?!:)")


def needs(program: str) -> str:
    if (path := shutil.which(program)) is None:
        pytest.skip(f"{program} is not installed (Debian: apt install prometheus)")
    return path


def busy(served: Served) -> None:
    """Make traffic of every kind that the dashboard shows."""
    served.encode("a", "b")
    served.http.post(f"/v1/encode/{ENCODER}", json={"items": [{"text": "a"}], "params": {"options": {"dimensions": 0}}})


@pytest.fixture(scope="module")
def prometheus(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A Prometheus that scrapes the door twice a second, with the rules."""
    program, root, (port,) = needs("prometheus"), tmp_path_factory.mktemp("prometheus"), free_ports(1)
    job = {
        "job_name": "sie",
        "authorization": {"credentials": TOKEN},
        "static_configs": [{"targets": [f"127.0.0.1:{served.ports[4]}"]}],
    }
    times = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    (root / "prometheus.yaml").write_text(
        json.dumps({"global": times, "rule_files": [str(RULES)], "scrape_configs": [job]})
    )
    command = [program, f"--config.file={root}/prometheus.yaml", f"--storage.tsdb.path={root}/data"]
    with (root / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=30) as client:
                busy(served)
                wait_for(lambda: is_ready(client))
                served.evict(ENCODER)
                for _ in range(10):
                    busy(served)
                    time.sleep(0.5)  # between two scrapes
                yield client
        finally:
            process.terminate()
            process.wait()


def is_ready(client: httpx.Client) -> bool:
    try:
        return any(each["value"][1] == "1" for each in results(client, 'up{job="sie"}'))
    except httpx.HTTPError:
        return False


def results(client: httpx.Client, expression: str) -> list[dict[str, Any]]:
    answer = client.get("/query", params={"query": expression})
    answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()["data"]["result"]
    return found


def test_every_metric_of_the_dashboard_and_the_rules_exists(served):
    busy(served)
    served.evict(ENCODER)
    served.encode("a")
    used = {name for expression in (*QUERIES.values(), *EXPRESSIONS.values()) for name in METRIC.findall(expression)}
    assert len(used) > 15

    def missing() -> set[str]:
        return plain(used) - plain(sample.name for family in served.families() for sample in family.samples)

    with suppress(AssertionError):
        wait_for(lambda: not missing())
    assert missing() == set()


def plain(names: Iterable[str]) -> set[str]:
    """Return the names without the ending that the parser gives to every counter."""
    return {name.removesuffix("_total") for name in names}


@pytest.mark.parametrize("title", QUERIES)
def test_each_query_of_the_dashboard_returns_data(prometheus, title):
    expression = QUERIES[title].replace("$__rate_interval", "1m").replace("$model", ".*")
    wait_for(lambda: results(prometheus, expression))


def test_the_rules_load_and_no_alert_fires_without_a_reason(prometheus):
    answer = prometheus.get("/rules").json()["data"]["groups"]
    rules = {rule["name"]: rule for group in answer for rule in group["rules"]}
    assert rules.keys() == EXPRESSIONS.keys()
    wait_for(lambda: results(prometheus, "sie:request_duration_seconds:p99_1m"))
    rules = {r["name"]: r for g in prometheus.get("/rules").json()["data"]["groups"] for r in g["rules"]}
    assert {rule["health"] for rule in rules.values()} == {"ok"}
    assert [name for name, rule in rules.items() if rule.get("state") == "firing"] == []


def test_promtool_accepts_the_rules():
    done = subprocess.run([needs("promtool"), "check", "rules", str(RULES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
