"""Runs the Pods of the chart with podman, on the network of this machine.

What podman 4.3 lacks is done here as the kubelet does it: secrets become files, services become 127.0.0.1, a Pod that
ends runs its preStop commands first, and volumes are writable for everybody. Probes are left out: tests ask themselves.
"""

import copy
import os
import secrets
import shutil
import subprocess
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from tests.support.chart import rendered

IMAGE = "localhost/sie-triton:cpu"

# Of a container: what podman does not know, or has no use for on the machine's own network.
LEFT_OUT = ("ports", "startupProbe", "livenessProbe", "readinessProbe", "lifecycle")


def podman(*arguments: str, timeout: float = 300) -> str:
    """Return what podman prints; CalledProcessError, with its errors on stderr, if it fails."""
    return subprocess.run(["podman", *arguments], check=True, stdout=subprocess.PIPE, text=True, timeout=timeout).stdout


def has_image() -> bool:
    """Return True if podman works here and has the image."""
    if shutil.which("podman") is None:
        return False
    return subprocess.run(["podman", "image", "exists", IMAGE], check=False, capture_output=True).returncode == 0


class Pods:
    """Pods of a release. Use as a context manager; at its end no Pod is left."""

    def __init__(self, root: Path, values: dict[str, Any]) -> None:
        self._root = root
        self.objects = rendered(values)
        # Passwords of the generated Secret, by user.
        self._passwords = defaultdict[str, str](lambda: f"p{secrets.token_hex()}")
        self._running: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> "Pods":
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._running:
            podman("pod", "rm", "--force", "--time", "5", name)
        # Files of the containers' users.
        shutil.rmtree(self._shm(), ignore_errors=True)

    def play(self, workload: str, number: int = 0, **env: str) -> str:
        """Run a Pod of a Deployment or StatefulSet; return its name. `env` replaces variables."""
        (found,) = [
            each
            for each in self.objects
            if each["kind"] in ("Deployment", "StatefulSet") and each["metadata"]["name"] == workload
        ]
        name, template = f"{workload}-{number}", copy.deepcopy(found["spec"]["template"])
        spec = template["spec"]
        self._running[name] = copy.deepcopy(spec)
        for container in spec["containers"]:
            for field in LEFT_OUT:
                container.pop(field, None)
            given = {each["name"]: self._value(each, name) for each in container["env"]} | env
            container["env"] = [{"name": key, "value": value} for key, value in given.items()]
        for volume in spec["volumes"]:
            self._fill(volume, name)
        for field in ("topologySpreadConstraints", "serviceAccountName"):
            spec.pop(field, None)
        spec["hostNetwork"] = True
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": template["metadata"]["labels"]}}
        path = self._root / f"{name}.yaml"
        path.write_text(yaml.safe_dump_all([*self._of_kind("ConfigMap"), {**pod, "spec": spec}]))
        podman("kube", "play", str(path))
        return name

    def kill(self, name: str) -> None:
        podman("pod", "kill", name)
        self._remove(name)

    def drain(self, name: str) -> None:
        """End a Pod as the kubelet does: each container gets SIGTERM once its preStop command has ended."""
        spec = self._running[name]

        def end(container: dict[str, Any]) -> None:
            of_podman = f"{name}-{container['name']}"
            if command := container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command"):
                podman("exec", of_podman, *command)
            podman("stop", "--time", str(spec["terminationGracePeriodSeconds"]), of_podman)

        with ThreadPoolExecutor() as threads:
            list(threads.map(end, spec["containers"]))
        self._remove(name)

    def logs(self, name: str) -> str:
        return "\n".join(
            subprocess.run(
                ["podman", "logs", "--tail", "20", f"{name}-{each['name']}"],
                check=False,
                capture_output=True,
                text=True,
            ).stderr
            for each in self._running[name]["containers"]
        )

    def _remove(self, name: str) -> None:
        podman("pod", "rm", "--force", "--time", "5", name)
        del self._running[name]

    def _value(self, variable: dict[str, Any], pod: str) -> str:
        """Return the value of a variable, with services at 127.0.0.1."""
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            return pod
        if "resourceFieldRef" in source:
            return "2"  # the default request of processors
        if "secretKeyRef" in source:
            return self._passwords[source["secretKeyRef"]["key"]]
        return variable["value"].replace("nats://sie-nats:", "nats://127.0.0.1:")

    def _fill(self, volume: dict[str, Any], pod: str) -> None:
        """Make the directory of a volume, with an owner and a mode as the kubelet gives it."""
        if "emptyDir" in volume:
            in_memory = volume.pop("emptyDir").get("medium") == "Memory"
            path = (self._shm() if in_memory else self._root) / pod / volume["name"]
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
            os.chown(path, 0, 10001)
            path.chmod(0o2777)
        elif "secret" in volume:
            secret = volume.pop("secret")
            path = self._root / pod / volume["name"]
            path.mkdir(parents=True, exist_ok=True)
            for item in secret["items"]:
                (path / item["path"]).write_text(self._passwords[item["key"]])
        else:
            return
        volume["hostPath"] = {"path": str(path)}

    def _shm(self) -> Path:
        return Path("/dev/shm") / f"sie-pods-{self._root.name}"

    def _of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.objects if each["kind"] == kind]
