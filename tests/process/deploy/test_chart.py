"""The Helm chart by helm itself: what it renders is valid, safe and known to our settings; what is wrong is refused."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator

import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from helm_python.chart import lint
from helm_python.errors import HelmError

from benchmarks.simulation import scaling
from sie_triton.cluster.up import nats_server
from sie_triton.settings import Settings
from sie_triton.system.host.private import TRUSTED
from tests.support.chart import KINDS, PARTS, Object, named, pod_of, pod_templates, rendered
from tests.support.prometheus import ALERTS, DASHBOARD, RULES, Firing, fires_and_clears
from tools.pages.chart import CHART, files

KUBERNETES = ("1.28", "1.32", "1.37")

# Objects of others, whose schemas Kubernetes does not have.
CUSTOM = ("keda.sh/", "monitoring.coreos.com/")

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


@pytest.fixture(scope="module", params=MATRIX.values(), ids=MATRIX.keys())
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return rendered(request.param)


def pods(objects: list[Object]) -> Iterator[Object]:
    for each in pod_templates(objects):
        yield each["spec"]


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
        assert pod["automountServiceAccountToken"] is (pod["containers"][0]["name"] == "secret")
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume} <= {"/mnt/weights"}
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
            if container["name"] not in ("nats", "secret"):
                assert {*names} <= known | {"HF_TOKEN"}


def test_volumes_are_there(objects):
    for each in objects:
        if each["kind"] in KINDS:
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
        if each["kind"] in KINDS
    }
    for each in objects:
        if each["kind"] in (*PARTS, "DaemonSet", "Service", "PodDisruptionBudget"):
            selector = each["spec"]["selector"]
            wanted = selector.get("matchLabels", selector).items()
            chosen = [name for name, has in labels.items() if wanted <= has.items()]
            assert chosen == [each["metadata"]["name"].removesuffix("-peers").removesuffix("-headless")]


def test_a_part_gets_the_password_of_its_own_user_only(objects):
    for each in objects:
        if each["kind"] in PARTS:
            pod = each["spec"]["template"]["spec"]
            name = pod["containers"][-1]["name"]
            if name != "nats":
                (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "nats-password"]
                user = {"worker-sidecar": "sidecar"}.get(name, name)
                assert volume["secret"]["items"] == [{"key": user, "path": "password"}]


def test_two_renders_are_equal_and_hold_no_password(objects, request):
    assert rendered(request.node.callspec.params["objects"]) == objects
    assert "Secret" not in {each["kind"] for each in objects}


def test_a_new_version_of_the_chart_alone_restarts_no_pod(tmp_path):
    shutil.copytree(CHART, tmp_path / "chart")
    about = tmp_path / "chart" / "Chart.yaml"
    about.write_text(re.sub("^version: .*", "version: 9.9.9", about.read_text(), flags=re.MULTILINE))
    before, after = rendered(EVERYTHING), rendered(EVERYTHING, tmp_path / "chart")
    assert before != after
    assert [*pod_templates(before)] == [*pod_templates(after)]


def test_a_pool_has_its_own_settings():
    large = named(rendered(EVERYTHING), "StatefulSet", "sie-worker-large")["spec"]
    server, sidecar = large["template"]["spec"]["containers"]
    environment = {each["name"]: each.get("value") for each in (*server["env"], *sidecar["env"])}
    assert server["args"] == ["BAAI/bge-m3"]
    assert server["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert large["template"]["spec"]["runtimeClassName"] == "nvidia"
    assert (environment["SIE_POOL"], environment["SIE_MACHINE_PROFILE"]) == ("large", "l4")
    assert environment["SIE_PRELOAD_MODELS"] == "BAAI/bge-m3,BAAI/bge-reranker-v2-m3"
    assert (environment["SIE_ENGINE"], environment["SIE_IDLE_EVICT_S"]) == ("torch", "60")
    assert [each["key"] for each in large["template"]["spec"]["tolerations"]] == [
        "a",
        "cloud.google.com/gke-spot",
        "kubernetes.azure.com/scalesetpriority",
        "nvidia.com/gpu",
    ]
    assert "replicas" not in large
    small = pod_of(rendered(EVERYTHING), "StatefulSet", "sie-worker-default")
    assert small["containers"][0]["args"] == ["sentence-transformers/all-MiniLM-L6-v2"]
    assert len(small["tolerations"]) == 1


@pytest.mark.parametrize(
    ("common", "expected"),
    [
        ({}, {"valueFrom": {"resourceFieldRef": {"containerName": "server", "resource": "requests.cpu"}}}),
        ({"resources": {"limits": {"cpu": "3"}}}, None),
        ({"env": {"SIE_CPU_THREADS": "1"}}, {"value": "1"}),
    ],
    ids=str,
)
def test_the_threads_of_a_server_follow_its_request_unless_it_has_a_quota(common, expected):
    server = pod_of(rendered({"workers": {"common": common}}), "StatefulSet", "sie-worker-default")["containers"][0]
    found = [{**each} for each in server["env"] if each.pop("name") == "SIE_CPU_THREADS"]
    assert found == ([expected] if expected else [])


PLACEMENT = ("nodeSelector", "tolerations", "affinity")


def test_an_operator_adds_to_each_part():
    parts = [each for each in rendered(EVERYTHING) if each["kind"] in PARTS]
    assert {each["metadata"]["name"] for each in parts} == {
        "sie-gateway",
        "sie-config",
        "sie-nats",
        "sie-worker-default",
        "sie-worker-large",
    }
    for each in parts:
        metadata, pod = each["spec"]["template"]["metadata"], each["spec"]["template"]["spec"]
        assert (metadata["annotations"]["note"], metadata["labels"]["team"]) == ("a", "search")
        if each["metadata"]["name"] != "sie-worker-large":  # whose pool has more
            assert {key: pod[key] for key in PLACEMENT} == {key: PLACED[key] for key in PLACEMENT}
        (spread,) = pod["topologySpreadConstraints"]
        assert spread["topologyKey"] == "topology.kubernetes.io/zone"
        assert spread["labelSelector"] == each["spec"]["selector"]
        for container in pod["containers"]:
            if container["name"] != "nats":
                assert container["envFrom"] == PART["envFrom"]
                assert PART["extraVolumeMounts"][0] in container["volumeMounts"]


def test_a_variable_comes_from_a_secret():
    worker = pod_of(rendered(EVERYTHING), "StatefulSet", "sie-worker-default")
    assert {"name": "HF_TOKEN", **HUB} in worker["containers"][0]["env"]


@pytest.mark.parametrize(
    ("cache", "volume"),
    [
        ({"hostPath": "/mnt/weights"}, {"hostPath": {"path": "/mnt/weights", "type": "Directory"}}),
        ({"existingClaim": "weights"}, {"persistentVolumeClaim": {"claimName": "weights"}}),
    ],
    ids=["of the node", "of the claim"],
)
def test_workers_share_weights(cache, volume):
    values = {"workers": {"common": {"modelCache": cache}}}
    worker = pod_of(rendered(values), "StatefulSet", "sie-worker-default")
    assert {"name": "weights", **volume} in worker["volumes"]
    server = worker["containers"][0]
    (mounted,) = [each["mountPath"] for each in server["volumeMounts"] if each["name"] == "weights"]
    assert {"name": "SIE_LOCAL_CACHE", "value": mounted} in server["env"]


def test_a_worker_keeps_its_data_on_a_claim_of_its_own():
    (claim,) = named(rendered(EVERYTHING), "StatefulSet", "sie-worker-default")["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "data"
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "50Gi"}},
    }


def test_images_are_pulled_where_workers_may_run():
    objects = rendered(EVERYTHING)
    for name in ("sie-worker-default", "sie-worker-large"):
        worker = pod_of(objects, "StatefulSet", name)
        prepull = pod_of(objects, "DaemonSet", f"{name}-prepull")
        assert {key: prepull[key] for key in PLACEMENT} == {key: worker[key] for key in PLACEMENT}
        assert [each["image"] for each in prepull["containers"]] == [worker["containers"][0]["image"]]


def test_each_container_has_probes(objects):
    for each in objects:
        if each["kind"] in PARTS:
            for container in each["spec"]["template"]["spec"]["containers"]:
                assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()


def test_a_name_has_the_address_of_each_gateway():
    headless = named(rendered({}), "Service", "sie-gateway-headless")["spec"]
    assert (headless["clusterIP"], [each["port"] for each in headless["ports"]]) == ("None", [8001])


def test_nats_has_the_version_that_is_tested():
    said = subprocess.run([nats_server(), "--version"], capture_output=True, text=True, check=True).stdout
    (tested,) = re.findall(r"v(\d+\.\d+)\.", said)
    (container,) = pod_of(rendered({}), "StatefulSet", "sie-nats")["containers"]
    assert container["image"].startswith(f"nats:{tested}.")


def test_rules_and_dashboard_are_those_of_docker(tmp_path):
    objects = rendered(EVERYTHING)
    groups = named(objects, "PrometheusRule", "sie")["spec"]["groups"]
    assert groups[:-1] == yaml.safe_load(RULES.read_text())["groups"]
    dashboard = named(objects, "ConfigMap", "sie-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["sie.json"]) == json.loads(DASHBOARD.read_text())


def test_the_alert_of_the_queues_disk_fires_and_clears(tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump(named(rendered(EVERYTHING), "PrometheusRule", "sie")["spec"]))
    disk = 'namespace="prod", persistentvolumeclaim="data-sie-nats-0"'
    series = {
        f"kubelet_volume_stats_capacity_bytes{{{disk}}}": "100x60",
        f"kubelet_volume_stats_available_bytes{{{disk}}}": "50x4 10x20 90x30",
    }
    fires_and_clears(rules, tmp_path, "SieQueueDiskNearlyFull", Firing(series, (4, 40), 12))


EXAMPLES = re.findall(r"```yaml\n(.*?)```", (CHART.parents[2] / "docs" / "kubernetes.md").read_text(), re.DOTALL)


def test_the_values_of_the_documentation_scale_from_zero():
    objects = rendered(yaml.safe_load(EXAMPLES[0]))
    scaled = named(objects, "ScaledObject", "sie-worker-default")["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"], scaled["cooldownPeriod"]) == (0, 10, 900)
    server = pod_of(objects, "StatefulSet", "sie-worker-default")["containers"][0]
    assert server["args"] == ["BAAI/bge-m3", "BAAI/bge-reranker-v2-m3"]
    assert server["resources"]["limits"] == {"memory": "16Gi", "nvidia.com/gpu": 1}


@pytest.mark.parametrize("values", EXAMPLES)
def test_kubernetes_would_take_the_documentations_values(values):
    for each in rendered(yaml.safe_load(values)):
        if not each["apiVersion"].startswith(CUSTOM):
            kubernetes_validate.validate(each, KUBERNETES[0], strict=True)


def test_scaling_rules_are_those_of_the_simulator():
    objects = rendered(SCALED)
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
    gateway = pod_of(rendered(EVERYTHING), "Deployment", "sie-gateway")["containers"][0]
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
    (container,) = pod_of(rendered({"gateway": gateway}), "Deployment", "sie-gateway")["containers"]
    found = [each["value"] for each in container["env"] if each["name"] == "SIE_DOOR_MAX_MEMORY_BYTES"]
    assert found == [expected] * (expected is not None)


def test_the_config_service_needs_the_tokens_of_gateways():
    (container,) = pod_of(rendered(EVERYTHING), "Deployment", "sie-config")["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["SIE_AUTH_MODE"] == "token"
    assert environment["SIE_AUTH_TOKENS"].startswith("@")


def test_prometheus_gets_a_token_if_gateways_need_one():
    (endpoint,) = named(rendered(EVERYTHING), "ServiceMonitor", "sie")["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "tokens", "key": "metricsToken"}
    (endpoint,) = named(rendered({"monitors": {"enabled": True}}), "ServiceMonitor", "sie")["spec"]["endpoints"]
    assert "authorization" not in endpoint


def test_prometheus_scrapes_each_part_under_the_job_of_the_rules():
    objects = rendered(EVERYTHING)
    endpoints = named(objects, "ServiceMonitor", "sie")["spec"]["endpoints"]
    endpoints += named(objects, "PodMonitor", "sie-workers")["spec"]["podMetricsEndpoints"]
    assert [each["relabelings"] for each in endpoints] == [[{"targetLabel": "job", "replacement": "sie"}]] * 2
    assert 'up{job="sie"}' in ALERTS["SieDown"]


def test_batching_values_have_the_names_of_sie():
    batcher = {"coalesceMs": 3, "maxBatchRequests": 16}
    values = {"workers": {"common": {"workerSidecar": {"batcher": batcher}}}}
    _, sidecar = pod_of(rendered(values), "StatefulSet", "sie-worker-default")["containers"]
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
    "workers.common.modelCache: hostPath or existingClaim": {
        "workers": {"common": {"modelCache": {"hostPath": "/mnt", "existingClaim": "weights"}}}
    },
    "'/workers/common/modelCache/hostPath'": {"workers": {"common": {"modelCache": {"hostPath": "weights"}}}},
    "'/gateway/env/A'": {"gateway": {"env": {"A": {"value": "b"}}}},
    "'/nats/image'": {"nats": {"image": "nats:latest"}},
}


@pytest.mark.parametrize(("message", "values"), WRONG.items(), ids=WRONG.keys())
def test_wrong_values_are_refused(message, values):
    with pytest.raises(HelmError) as refused:
        rendered(values)
    assert message in str(refused.value)
