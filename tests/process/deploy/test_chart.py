"""The Helm chart by helm itself: what it renders is valid, safe and known to our settings; what is wrong is refused."""

import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from helm_python.chart import Chart, lint
from helm_python.errors import HelmError

from sie_triton.cluster.policies import scaling
from sie_triton.settings import Settings
from sie_triton.system.host.private import TRUSTED
from tests.support.prometheus import ALERTS
from tools.pages.chart import CHART, files

KUBERNETES = ("1.28", "1.32", "1.37")

# Objects of others, whose schemas Kubernetes does not have.
CUSTOM = ("keda.sh/", "monitoring.coreos.com/")

SCALED = {"autoscaling": {"enabled": True}, "gateway": {"autoscaling": {"enabled": True}}}
LARGE = {"minReplicas": 0, "maxReplicas": 8, "spot": True, "gpu": {"count": 1}, "machineProfile": "l4", "gpuType": "l4"}
TOKENS = {"auth": {"mode": "token", "existingSecret": "tokens"}}
EVERYTHING = {
    **SCALED,
    "image": {"repository": "registry.example/sie", "tag": "1.2", "pullSecrets": ["registry"]},
    "gateway": {**TOKENS, "autoscaling": {"enabled": True}, "ingress": {"enabled": True, "host": "sie.example"}},
    "workers": {
        "common": {
            "envFromSecret": "hub",
            "tolerations": [{"key": "a", "operator": "Exists"}],
            "env": {"SIE_ENGINE": "torch"},
        },
        "pools": {"large": {**LARGE, "models": ["BAAI/bge-m3"], "env": {"SIE_IDLE_EVICT_S": "60"}}},
    },
    "nats": {"replicas": 3},
    "queue": {"replicas": 3},
    "payloadStore": {"enabled": True, "url": "file:///var/lib/sie-shared/payloads"},
    "weightCache": {"enabled": True, "url": "file:///var/lib/sie-shared/weights"},
    "sharedVolume": {"claimName": "shared"},
    "networkPolicy": {"enabled": True, "clients": [{"namespaceSelector": {}}]},
    "monitors": {"enabled": True, "labels": {"release": "prometheus"}},
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
        "serviceAccount": "sie",
        "nameOverride": "other",
    },
    "everything": EVERYTHING,
}


def rendered(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name, text in Chart.load(str(CHART)).render(values, name="sie", namespace="prod").items():
        if name.endswith(".yaml"):
            yield from filter(None, yaml.safe_load_all(text))


@pytest.fixture(params=MATRIX.values(), ids=MATRIX.keys())
def objects(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return list(rendered(request.param))


def pods(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for each in objects:
        if each["kind"] in ("Deployment", "StatefulSet"):
            yield each["spec"]["template"]["spec"]


def named(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def test_generated_files_are_up_to_date():
    for path, text in files().items():
        assert path.read_text() == text, f"{path.name}: run python -m tools.pages"


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())
def test_helm_lints_it(values):
    found = lint(str(CHART), values, strict=True, namespace="prod")
    assert [each for each in found["messages"] if each["severity"] > 1] == []  # 1 recommends an icon


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_would_take_it(objects, version):
    checked = [each for each in objects if not each["apiVersion"].startswith(CUSTOM)]
    assert len(checked) >= 8
    for each in checked:
        kubernetes_validate.validate(each, version, strict=True)


def test_keda_would_take_it(objects):
    for each in objects:
        if each["kind"] == "ScaledObject":
            known = ScaledObject.model_validate(each).model_dump(by_alias=True, exclude_none=True, mode="json")
            assert known == each


def test_every_container_is_confined(objects):
    found = list(pods(objects))
    assert found
    for pod in found:
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any("hostPath" in volume for volume in pod["volumes"])
        for container in pod["containers"]:
            security = container["securityContext"]
            assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]
            name, _, tag = container["image"].rpartition(":")
            assert name
            assert tag not in ("", "latest")
            assert not any(
                "password" in str(each.get("value", "")) for each in container["env"] if "@" not in str(each)
            )


def test_every_variable_is_a_setting(objects):
    known = {TRUSTED, *(f"SIE_{name.upper()}" for name in Settings.model_fields)}
    for pod in pods(objects):
        for container in pod["containers"]:
            names = [each["name"] for each in container["env"]]
            assert len(names) == len({*names})
            if container["name"] != "nats":
                assert {*names} <= known


def test_volumes_are_there(objects):
    for each in objects:
        if each["kind"] in ("Deployment", "StatefulSet"):
            pod = each["spec"]["template"]["spec"]
            claims = [claim["metadata"]["name"] for claim in each["spec"].get("volumeClaimTemplates", [])]
            there = [*(volume["name"] for volume in pod["volumes"]), *claims]
            assert len(there) == len({*there})
            for container in pod["containers"]:
                assert {mount["name"] for mount in container["volumeMounts"]} <= {*there}


def test_a_selector_chooses_its_own_pods_only(objects):
    labels = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in objects
        if each["kind"] in ("Deployment", "StatefulSet")
    }
    for each in objects:
        if each["kind"] in ("Deployment", "StatefulSet", "Service", "PodDisruptionBudget"):
            selector = each["spec"]["selector"]
            wanted = selector.get("matchLabels", selector).items()
            chosen = [name for name, has in labels.items() if wanted <= has.items()]
            assert chosen == [each["metadata"]["name"].removesuffix("-peers")]


def test_a_part_gets_the_password_of_its_own_user_only(objects):
    for pod in pods(objects):
        name = pod["containers"][-1]["name"]
        if name != "nats":
            (volume,) = [each for each in pod["volumes"] if each["name"] == "nats-password"]
            user = {"worker-sidecar": "sidecar"}.get(name, name)
            assert volume["secret"]["items"] == [{"key": user, "path": "password"}]


def test_a_pool_has_its_own_settings():
    large = named(list(rendered(EVERYTHING)), "StatefulSet", "sie-worker-large")["spec"]
    server, sidecar = large["template"]["spec"]["containers"]
    environment = {each["name"]: each.get("value") for each in (*server["env"], *sidecar["env"])}
    assert server["args"] == ["BAAI/bge-m3"]
    assert server["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert (environment["SIE_POOL"], environment["SIE_MACHINE_PROFILE"]) == ("large", "l4")
    assert (environment["SIE_ENGINE"], environment["SIE_IDLE_EVICT_S"]) == ("torch", "60")
    assert server["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert len(large["template"]["spec"]["tolerations"]) == 3
    assert "replicas" not in large
    small = named(list(rendered(EVERYTHING)), "StatefulSet", "sie-worker-default")["spec"]["template"]["spec"]
    assert small["containers"][0]["args"] == ["sentence-transformers/all-MiniLM-L6-v2"]
    assert len(small["tolerations"]) == 1


def test_the_values_of_the_documentation_scale_from_zero():
    (text,) = re.findall(r"```yaml\n(image:.*?)```", (CHART.parents[2] / "docs" / "cluster.md").read_text(), re.DOTALL)
    objects = list(rendered(yaml.safe_load(text)))
    scaled = named(objects, "ScaledObject", "sie-worker-default")["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"], scaled["cooldownPeriod"]) == (0, 10, 900)
    server = named(objects, "StatefulSet", "sie-worker-default")["spec"]["template"]["spec"]["containers"][0]
    assert server["args"] == ["BAAI/bge-m3", "BAAI/bge-reranker-v2-m3"]
    assert server["resources"]["limits"] == {"memory": "16Gi", "nvidia.com/gpu": 1}


def test_scaling_rules_are_those_of_the_simulator():
    objects = list(rendered(SCALED))
    scaled = named(objects, "ScaledObject", "sie-worker-default")["spec"]
    thresholds = [float(each["metadata"]["threshold"]) for each in scaled["triggers"]]
    assert thresholds == [
        scaling.QUEUE_DEPTH_PER_WORKER,
        scaling.DEMAND_PER_WORKER,
        scaling.LEASED_PER_WORKER,
        scaling.REJECTED_PER_WORKER,
    ]
    assert float(scaled["triggers"][0]["metadata"]["activationThreshold"]) == scaling.QUEUE_DEPTH_ACTIVATION
    assert (scaled["pollingInterval"], scaled["cooldownPeriod"]) == (scaling.POLL_S, scaling.COOLDOWN_S)
    behavior = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == scaling.STABILISATION_S
    assert [each["value"] for each in behavior["scaleUp"]["policies"]] == [
        100 * scaling.MAX_GROWTH_RATIO,
        scaling.MAX_GROWTH,
    ]


def test_gateways_know_the_pools_that_can_be_started():
    gateway = named(list(rendered(EVERYTHING)), "Deployment", "sie-gateway")["spec"]["template"]["spec"]["containers"][
        0
    ]
    environment = {each["name"]: each["value"] for each in gateway["env"]}
    assert environment["SIE_GATEWAY_CONFIGURED_POOLS"] == "default,large"
    assert environment["SIE_GATEWAY_CONFIGURED_GPUS"] == "default,l4"
    assert environment["SIE_AUTH_TOKENS"].startswith("@")


@pytest.mark.parametrize(
    ("gateway", "expected"),
    [
        ({}, str(2**29)),
        ({"resources": {"limits": {"memory": "1536Mi"}}}, str(768 * 2**20)),
        ({"resources": {"limits": {"memory": "2.5G"}}}, "1250000000"),
        ({"resources": {"limits": {"memory": 4_000_000_000}}}, "2000000000"),
        ({"resources": {"limits": {"memory": "1Ei"}}}, None),
        ({"env": {"SIE_DOOR_WORKERS": "4"}}, str(2**27)),
        ({"env": {"SIE_DOOR_MAX_MEMORY_BYTES": "1000000"}}, "1000000"),
    ],
    ids=str,
)
def test_requests_take_at_most_half_of_a_gateways_memory(gateway, expected):
    """The rest is for what is not counted: a container that needs more than its limit is killed, with all requests."""
    (container,) = named(list(rendered({"gateway": gateway})), "Deployment", "sie-gateway")["spec"]["template"]["spec"][
        "containers"
    ]
    found = [each["value"] for each in container["env"] if each["name"] == "SIE_DOOR_MAX_MEMORY_BYTES"]
    assert found == [expected] * (expected is not None)


def test_the_config_service_needs_the_tokens_of_gateways():
    (container,) = named(list(rendered(EVERYTHING)), "Deployment", "sie-config")["spec"]["template"]["spec"][
        "containers"
    ]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["SIE_AUTH_MODE"] == "token"
    assert environment["SIE_AUTH_TOKENS"].startswith("@")


def test_prometheus_gets_a_token_if_gateways_need_one():
    (endpoint,) = named(list(rendered(EVERYTHING)), "ServiceMonitor", "sie")["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "tokens", "key": "metricsToken"}
    (endpoint,) = named(list(rendered({"monitors": {"enabled": True}})), "ServiceMonitor", "sie")["spec"]["endpoints"]
    assert "authorization" not in endpoint


def test_prometheus_scrapes_each_part_under_the_job_of_the_rules():
    objects = list(rendered(EVERYTHING))
    endpoints = named(objects, "ServiceMonitor", "sie")["spec"]["endpoints"]
    endpoints += named(objects, "PodMonitor", "sie-workers")["spec"]["podMetricsEndpoints"]
    assert [each["relabelings"] for each in endpoints] == [[{"targetLabel": "job", "replacement": "sie"}]] * 2
    assert 'up{job="sie"}' in ALERTS["SieDown"]


def test_batching_values_have_the_names_of_sie():
    batcher = {"coalesceMs": 3, "maxBatchRequests": 16}
    values = {"workers": {"common": {"workerSidecar": {"batcher": batcher}}}}
    _, sidecar = named(list(rendered(values)), "StatefulSet", "sie-worker-default")["spec"]["template"]["spec"][
        "containers"
    ]
    assert {"name": "SIE_BATCHER_COALESCE_MS", "value": "3"} in sidecar["env"]
    assert {"name": "SIE_BATCHER_MAX_BATCH_REQUESTS", "value": "16"} in sidecar["env"]


WRONG = {
    "gateway.auth.existingSecret: name the Secret": {"gateway": {"auth": {"mode": "token"}}},
    "workers.pools.default.minReplicas: 0 needs": {"workers": {"pools": {"default": {"minReplicas": 0}}}},
    "queue.replicas: at most nats.replicas, 1": {"queue": {"replicas": 3}},
    "nats.url: give the address": {"nats": {"enabled": False, "existingSecret": "a"}},
    "nats.existingSecret: name the Secret": {"nats": {"enabled": False, "url": "nats://a"}},
    "payloadStore.url: give": {"payloadStore": {"enabled": True}},
    "weightCache.url: give": {"weightCache": {"enabled": True}},
    "additional properties 'replica' not allowed": {"gateway": {"replica": 3}},
    "additional properties 'enabled' not allowed": {"config": {"enabled": False}},  # nothing else makes queues
    "'/workers/pools/default/gpu/count'": {"workers": {"pools": {"default": {"gpu": {"count": 8}}}}},
    "'/workers/pools': additional properties 'A' not allowed": {"workers": {"pools": {"A": {}}}},
    "'/image/tag'": {"image": {"tag": "latest"}},
    "'/nats/image'": {"nats": {"image": "nats:latest"}},
}


@pytest.mark.parametrize(("message", "values"), WRONG.items(), ids=WRONG.keys())
def test_wrong_values_are_refused(message, values):
    with pytest.raises(HelmError) as refused:
        list(rendered(values))
    assert message in str(refused.value)
