"""What the values of the Helm chart change in what it renders."""

import json
import re
import subprocess

import pytest
import yaml

from benchmarks.simulation import scaling
from sie_triton.cluster.up import nats_server
from tests.support.chart import (
    EVERYTHING,
    EXAMPLES,
    HUB,
    PART,
    PARTS,
    PLACED,
    SCALED,
    named,
    pod_of,
    rendered,
)
from tests.support.prometheus import ALERTS, DASHBOARD, RULES, Firing, fires_and_clears


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
    fires_and_clears(rules, tmp_path, {"SieQueueDiskNearlyFull": Firing(series, (4, 40), 12)})


def test_the_values_of_the_documentation_scale_from_zero():
    objects = rendered(yaml.safe_load(EXAMPLES[0]))
    scaled = named(objects, "ScaledObject", "sie-worker-default")["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"], scaled["cooldownPeriod"]) == (0, 10, 900)
    server = pod_of(objects, "StatefulSet", "sie-worker-default")["containers"][0]
    assert server["args"] == ["BAAI/bge-m3", "BAAI/bge-reranker-v2-m3"]
    assert server["resources"]["limits"] == {"memory": "16Gi", "nvidia.com/gpu": 1}


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
