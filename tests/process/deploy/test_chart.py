"""The Helm chart by helm itself: what it renders is valid, safe and known to our settings; what is wrong is refused."""

import re
import shutil
from collections.abc import Iterator
from itertools import product

import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from helm_python.chart import lint
from helm_python.errors import HelmError

from sie_triton.settings import Settings
from sie_triton.system.host.private import TRUSTED
from tests.support.chart import EVERYTHING, EXAMPLES, KINDS, MATRIX, PARTS, Object, pod_templates, render, rendered
from tools.pages.chart import CHART, files

KUBERNETES = ("1.28", "1.32", "1.37")

# Objects of others, whose schemas Kubernetes does not have.
CUSTOM = ("keda.sh/", "monitoring.coreos.com/")


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


def test_kubernetes_would_take_it(objects):
    checked = [each for each in objects if not each["apiVersion"].startswith(CUSTOM)]
    assert len(checked) >= 8
    for each, version in product(checked, KUBERNETES):
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
            if container["name"] not in ("secret", "prepull"):
                assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
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
    render.cache_clear()
    assert rendered(request.node.callspec.params["objects"]) == objects
    assert "Secret" not in {each["kind"] for each in objects}


def test_a_new_version_of_the_chart_alone_restarts_no_pod(tmp_path):
    shutil.copytree(CHART, tmp_path / "chart")
    about = tmp_path / "chart" / "Chart.yaml"
    about.write_text(re.sub("^version: .*", "version: 9.9.9", about.read_text(), flags=re.MULTILINE))
    before, after = rendered(EVERYTHING), rendered(EVERYTHING, tmp_path / "chart")
    assert before != after
    assert [*pod_templates(before)] == [*pod_templates(after)]


@pytest.mark.parametrize("values", EXAMPLES)
def test_kubernetes_would_take_the_documentations_values(values):
    for each in rendered(yaml.safe_load(values)):
        if not each["apiVersion"].startswith(CUSTOM):
            kubernetes_validate.validate(each, KUBERNETES[0], strict=True)


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
