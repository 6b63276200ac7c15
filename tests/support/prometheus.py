"""A real Prometheus with the rules of docker/prometheus."""

import json
import math
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

from benchmarks.ports import free_ports

DOCKER = Path(__file__).parents[2] / "docker"
RULES, DASHBOARD = DOCKER / "prometheus" / "rules.yaml", DOCKER / "grafana" / "dashboard.json"

EXPRESSIONS: dict[str, str] = {
    rule.get("alert") or rule["record"]: rule["expr"]
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
}
ALERTS = {name: expression for name, expression in EXPRESSIONS.items() if name.startswith("Sie")}


def needs(program: str) -> str:
    """Return the path of a program, and skip the test without it."""
    if (path := shutil.which(program)) is None:
        pytest.skip(f"{program} is not installed (Debian: apt install prometheus)")
    return path


class Firing(NamedTuple):
    """Input for an alert in promtool's notation, a value a minute; the minutes at which it fires and does not."""

    series: dict[str, str]
    quiet: tuple[int, int]
    fires: int


def fires_and_clears(rules: Path, root: Path, firings: Mapping[str, Firing]) -> None:
    """Fail unless each alert of a file of rules fires for its input and clears, by promtool, which needs no time."""
    content = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [_test_of(alert, firing) for alert, firing in firings.items()],
    }
    path = root / "test.yaml"
    path.write_text(yaml.safe_dump(content))
    done = subprocess.run([needs("promtool"), "test", "rules", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _test_of(alert: str, firing: Firing) -> dict[str, object]:
    query = f'count by (alertname) (ALERTS{{alertstate="firing", alertname="{alert}"}})'

    def expected(minute: int, *samples: dict[str, object]) -> dict[str, object]:
        return {"expr": query, "eval_time": f"{minute}m", "exp_samples": samples}

    before, after = firing.quiet
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in firing.series.items()],
        "promql_expr_test": [
            expected(before),
            expected(firing.fires, {"labels": f'{{alertname="{alert}"}}', "value": 1}),
            expected(after),
        ],
    }


class Prometheus:
    """Client of a running Prometheus."""

    def __init__(self, port: int) -> None:
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=30)

    def query(self, expression: str) -> list[float]:
        """Return the values of an expression that are numbers; none while Prometheus does not answer yet."""
        try:
            answer = self.http.get("/query", params={"query": expression})
        except httpx.HTTPError:
            return []
        assert answer.status_code == 200 or answer.status_code == 503, answer.text  # 503: it starts
        found = answer.json()["data"]["result"] if answer.status_code == 200 else []
        values = [float(each["value"][1]) for each in found]
        return [value for value in values if not math.isnan(value)]

    def rules(self) -> dict[str, dict[str, Any]]:
        groups = self.http.get("/rules").json()["data"]["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}


@contextmanager
def prometheus(
    root: Path, targets: Sequence[str], token: str = "", labels: Mapping[str, str] | None = None
) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes `targets` twice a second; `labels` are those that Kubernetes would give them."""
    program, (port,) = needs("prometheus"), free_ports(1)
    job: dict[str, Any] = {"job_name": "sie", "static_configs": [{"targets": [*targets], "labels": {**(labels or {})}}]}
    if token:
        job["authorization"] = {"credentials": token}
    times = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    config = root / "prometheus.yaml"
    config.write_text(json.dumps({"global": times, "rule_files": [str(RULES)], "scrape_configs": [job]}))
    flags = [f"--config.file={config}", f"--storage.tsdb.path={root / 'data'}"]
    with (root / "log").open("w") as log:
        process = subprocess.Popen([program, *flags, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        try:
            yield Prometheus(port)
        finally:
            process.terminate()
            process.wait()
