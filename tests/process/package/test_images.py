"""The Dockerfiles and compose.yaml are as docs/installation.md says; `scripts/image` builds and runs them."""

import json
import re
from pathlib import Path

import pytest
import yaml

from sie_triton.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
GPU, CPU = "docker/Dockerfile", "docker/Dockerfile.cpu"

Stage = list[tuple[str, str]]


def stages_of(file: str) -> dict[str, Stage]:
    """Return the instructions of each stage, as pairs of keyword and arguments.

    The ARGs before the first stage have an empty name.
    """
    text = re.sub(r"^#.*\n", "", (ROOT / file).read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    stages: dict[str, Stage] = {"": []}
    for line in filter(None, text.splitlines()):
        keyword, arguments = line.split(None, 1)
        if keyword == "FROM":
            stages[arguments.rpartition(" AS ")[2]] = []
        else:
            list(stages.values())[-1].append((keyword, " ".join(arguments.split())))
    return stages


@pytest.fixture(params=[GPU, CPU])
def stages(request) -> dict[str, Stage]:
    return stages_of(request.param)


def test_base_images_are_pinned(stages):
    bases = [arguments.partition("=")[2] for _, arguments in stages[""]]
    assert bases
    assert all(":" in base and not base.endswith(":latest") for base in bases)


def test_the_server_is_an_unprivileged_user_below_an_init_process(stages):
    server = dict(stages["server"])
    assert "useradd --uid 10001" in dict(stages["system"])["RUN"]
    assert server["USER"] == "10001:10001"
    assert json.loads(server["ENTRYPOINT"]) == ["tini", "--", "sie-triton", "serve"]


def test_only_the_door_is_exposed_and_checked(stages):
    server, port = dict(stages["server"]), str(Settings.model_fields["door_port"].default)
    assert server["EXPOSE"] == port
    assert f"${{SIE_DOOR_PORT:-{port}}}/readyz" in server["HEALTHCHECK"]
    assert {"SIE_HOST=0.0.0.0", "SIE_TRITON_HOST=127.0.0.1"} <= set(server["ENV"].split())


def test_all_that_is_written_is_in_the_volume(stages):
    server = dict(stages["server"])
    variables = dict(each.split("=", 1) for each in server["ENV"].split())
    for name in ("HOME", "HF_HOME", "SIE_DATA_DIR", "SIE_ENVIRONMENTS_DIR"):
        assert Path(variables[name]).is_relative_to(server["VOLUME"]), name


def test_both_files_have_the_same_wheel_and_the_same_server():
    """Their first stages are equal, and so are their last ones; the systems differ by what a base lacks."""
    gpu, cpu = stages_of(GPU), stages_of(CPU)
    assert list(gpu) == list(cpu) == ["", "wheel", "system", "environment", "server"]
    assert gpu["wheel"] == cpu["wheel"]
    assert gpu["server"] == cpu["server"]
    assert gpu["system"][0] == ("USER", "0")
    assert [keyword for keyword, _ in gpu["system"][1:]] == [keyword for keyword, _ in cpu["system"]] == ["RUN"]


def test_the_image_contains_its_bill_of_materials(stages):
    """It is written last, of the system that the server runs on; `test_sbom.py` runs what writes it."""
    assert stages["environment"][-2:] == [
        ("COPY", "--from=system /usr/lib/os-release /var/lib/dpkg/status /build/system/"),
        ("RUN", "/build/make-environment --sbom"),
    ]
    assert "SBOM=/opt/sie-triton/sbom.cdx.json\n" in (ROOT / "scripts/image").read_text()
    assert '"$environment/sbom.cdx.json"\n' in (ROOT / "docker/make-environment").read_text()
    assert ("COPY", "--from=environment /opt/sie-triton /opt/sie-triton") in stages["server"]


def test_the_version_of_torch_is_that_of_the_constraints():
    version = re.search(r"^torch==.*", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[0]
    assert ("ARG", f"TORCH={version}") in stages_of(GPU)["environment"]
    assert ("ARG", f"TORCH={version}+cpu") in stages_of(CPU)["environment"]


def test_services_of_compose_are_confined_and_pinned():
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    servers = [services["sie-cpu"], services["sie-gpu"]]
    assert [each["build"]["dockerfile"] for each in servers] == [CPU, GPU]
    for each in servers:
        assert each["read_only"]
        assert each["cap_drop"] == ["ALL"]
        assert each["networks"]["default"]["aliases"] == ["sie"]
    for each in services.values():
        assert re.fullmatch(r"[^:]+:v?[\w.]+", each["image"])
        assert not each["image"].endswith(":latest")
        assert all(port.startswith("127.0.0.1:") for port in each["ports"])


def test_monitoring_finds_the_server_and_its_own_files():
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    monitoring = [name for name, each in services.items() if "monitoring" in each["profiles"]]
    assert monitoring == ["prometheus", "grafana"]
    scraped = yaml.safe_load((ROOT / "docker/prometheus/prometheus.yaml").read_text())["scrape_configs"]
    assert [each["static_configs"] for each in scraped] == [[{"targets": ["sie:8080"]}]]
    provisioning = ROOT / "docker/grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards/sie.yaml").read_text())["providers"]
    mounts = [volume.split(":")[1] for volume in services["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/sie.json" in mounts
