"""The Helm chart, rendered by helm itself."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from helm_python.chart import Chart

from tools.pages.chart import CHART

NAMESPACE = "prod"

Object = dict[str, Any]

# Kinds of objects that make Pods; the DaemonSet and the Job have no part of a cluster in them.
PARTS = ("Deployment", "StatefulSet")
KINDS = (*PARTS, "DaemonSet", "Job")


def rendered(values: dict[str, Any], chart: Path = CHART) -> list[Object]:
    """Return the objects of a release `sie`."""
    return deepcopy(render(json.dumps(values), chart))


@cache
def render(values: str, chart: Path) -> list[Object]:
    texts = Chart.load(str(chart)).render(json.loads(values), name="sie", namespace=NAMESPACE)
    return [each for name, text in texts.items() if name.endswith(".yaml") for each in yaml.safe_load_all(text) if each]


def named(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pod_of(objects: list[Object], kind: str, name: str) -> Object:
    """Return the specification of the Pods of an object."""
    pod: Object = named(objects, kind, name)["spec"]["template"]["spec"]
    return pod


def pod_templates(objects: list[Object]) -> Iterator[Object]:
    for each in objects:
        if each["kind"] in KINDS:
            yield each["spec"]["template"]


SCALED = {"autoscaling": {"enabled": True}, "gateway": {"autoscaling": {"enabled": True}}}

LARGE = {"minReplicas": 0, "maxReplicas": 8, "spot": True, "gpu": {"count": 1}, "machineProfile": "l4", "gpuType": "l4"}

TOKENS = {"auth": {"mode": "token", "existingSecret": "tokens"}}

# What an operator may add to each Pod, and to each of our containers.
PLACED = {
    "podAnnotations": {"note": "a"},
    "podLabels": {"team": "search", "app.kubernetes.io/component": "not the operator's"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    ],
}

PART = {
    "envFrom": [{"secretRef": {"name": "buckets"}}],
    "extraVolumes": [{"name": "key", "secret": {"secretName": "gcs"}}],
    "extraVolumeMounts": [{"name": "key", "mountPath": "/run/secrets/gcs"}],
}

HUB = {"valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}

EVERYTHING = {
    **SCALED,
    "image": {"repository": "registry.example/sie", "tag": "1.2", "pullSecrets": ["registry"]},
    "gateway": {
        **TOKENS,
        "autoscaling": {"enabled": True},
        "ingress": {"enabled": True, "host": "sie.example"},
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        **PART,
        **PLACED,
    },
    "workers": {
        "common": {
            "env": {"SIE_ENGINE": "torch", "HF_TOKEN": HUB},
            "workerSidecar": {key: PART[key] for key in ("envFrom", "extraVolumeMounts")},
            "persistence": {"enabled": True, "storageClass": "fast"},
            "modelCache": {"existingClaim": "weights"},
            "imagePrepull": {"enabled": True},
            "preloadModels": ["BAAI/bge-m3", "BAAI/bge-reranker-v2-m3"],
            **PART,
            **PLACED,
        },
        "pools": {
            "large": {
                **LARGE,
                "models": ["BAAI/bge-m3"],
                "env": {"SIE_IDLE_EVICT_S": "60"},
                "runtimeClassName": "nvidia",
            }
        },
    },
    "config": {**PART, **PLACED},
    "nats": {"replicas": 3, **PLACED},
    "queue": {"replicas": 3},
    "payloadStore": {"enabled": True, "url": "file:///var/lib/sie-shared/payloads"},
    "weightCache": {"enabled": True, "url": "file:///var/lib/sie-shared/weights"},
    "sharedVolume": {"claimName": "shared"},
    "networkPolicy": {"enabled": True, "clients": [{"namespaceSelector": {}}]},
    "monitors": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True},
    "serviceAccount": {"annotations": {"role": "buckets"}},
    "priorityClasses": {"enabled": True},
}

MATRIX = {
    "defaults": {},
    "scaled by KEDA": {**SCALED, "workers": {"pools": {"large": LARGE}}},
    "scaled by CPU": {**SCALED, "autoscaling": {"enabled": True, "keda": {"enabled": False}}},
    "another NATS": {
        "nats": {"enabled": False, "url": "nats://nats:4222", "existingSecret": "nats", "caSecret": "ca"},
    },
    "without budgets and disk": {
        "podDisruptionBudgets": {"enabled": False},
        "nats": {"persistence": {"enabled": False}},
        "workers": {"pools": {"default": {"enabled": False}, "other": {"minReplicas": 2}}},
        "serviceAccount": {"create": False, "name": "sie"},
        "nameOverride": "other",
    },
    "weights on the node": {"workers": {"common": {"modelCache": {"hostPath": "/mnt/weights"}}}},
    "everything": EVERYTHING,
}

# Values of the documentation.
EXAMPLES = re.findall(r"```yaml\n(.*?)```", (CHART.parents[2] / "docs" / "kubernetes.md").read_text(), re.DOTALL)
