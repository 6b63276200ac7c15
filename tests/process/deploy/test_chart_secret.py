"""The Job of the chart makes the Secret that its Pods read, once."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from tests.support.chart import pod_of, pod_templates, rendered
from tests.support.http_servers import Told, answering

# Keys of the Secret, and the passwords that Pods read in it.
KEYS = {"gateway", "sidecar", "config", "operator", "peer", "adminToken"}


@contextmanager
def api_server(status: int) -> Iterator[tuple[str, list[tuple[str, str, dict[str, Any]]]]]:
    """Yield the URL of an API server that answers with `status`, and its requests: path, token and body."""
    requests = []

    def answer(request: BaseHTTPRequestHandler) -> Told:
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        requests.append((request.path, request.headers["Authorization"], body))
        return status, {}, b""

    with answering(answer) as port:
        yield f"http://127.0.0.1:{port}", requests


@pytest.mark.parametrize(("status", "succeeds"), [(201, True), (409, True), (403, False)])
def test_the_job_makes_the_secret_unless_it_exists(tmp_path, status, succeeds):
    job = pod_of(rendered({}), "Job", "sie-secret")["containers"][0]
    for name, text in (("token", "account's"), ("namespace", "prod"), ("ca.crt", "")):
        (tmp_path / name).write_text(text)
    with api_server(status) as (url, requests):
        env = {"PATH": os.environ["PATH"], "ACCOUNT": str(tmp_path), "API": url}
        env |= {each["name"]: each["value"] for each in job["env"]}
        done = subprocess.run(job["command"], env=env, capture_output=True, text=True)
    assert (done.returncode == 0) == succeeds
    ((path, token, body),) = requests
    assert (path, token) == ("/api/v1/namespaces/prod/secrets", "Bearer account's")
    assert body["metadata"] == {"name": "sie-generated"}
    passwords = body["stringData"]
    assert passwords.keys() == KEYS
    assert len({*passwords.values()}) == len(KEYS)
    assert all(re.fullmatch("p[A-Za-z0-9]{32,}", each) for each in passwords.values())
    assert not any(each in done.stdout + done.stderr for each in passwords.values())


def test_pods_read_keys_that_the_secret_has():
    read = set()
    for pod in (each["spec"] for each in pod_templates(rendered({"nats": {"replicas": 3}}))):
        for secret in (volume["secret"] for volume in pod["volumes"] if "secret" in volume):
            read |= {(secret["secretName"], item["key"]) for item in secret["items"]}
        for variable in (each for container in pod["containers"] for each in container["env"]):
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                read.add((reference["name"], reference["key"]))
    assert read == {("sie-generated", key) for key in KEYS}


@pytest.mark.parametrize(
    ("values", "makes"),
    [
        ({"nats": {"existingSecret": "a"}, "config": {"existingSecret": "b"}}, False),
        ({"nats": {"existingSecret": "a"}}, True),
        ({"config": {"existingSecret": "b"}}, True),
    ],
    ids=str,
)
def test_secrets_of_the_operator_need_no_job(values, makes):
    kinds = {each["kind"] for each in rendered(values)}
    assert kinds & {"Job", "Role", "RoleBinding"} == ({"Job", "Role", "RoleBinding"} if makes else set())
