import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from sie_triton.cli import cli
from sie_triton.cli.options import settings_of_running
from sie_triton.contract.spec import Runtime
from sie_triton.errors import SettingsError
from sie_triton.settings import Settings, read_settings, unknown_variables
from sie_triton.settings.cluster import ClusterSettings
from sie_triton.settings.groups import GROUPS, USUAL
from sie_triton.settings.secrets import tokens
from sie_triton.settings.sources import NOT_READ, flag, variable


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(tmp_path, monkeypatch):
    assert read_settings().http_port == 8000
    (tmp_path / "sie.yaml").write_text("http_port: 1\ngrpc_port: 1\nmetrics_port: 1\n")
    monkeypatch.setenv("SIE_HTTP_PORT", "2")
    monkeypatch.setenv("SIE_GRPC_PORT", "2")
    settings = read_settings(http_port="3", host=None)
    assert (settings.http_port, settings.grpc_port, settings.metrics_port) == (3, 2, 1)
    assert settings.host == "127.0.0.1"


def test_a_variable_may_name_the_settings_file(tmp_path, monkeypatch):
    (tmp_path / "other.yaml").write_text("max_batch_requests: 7")
    monkeypatch.setenv("SIE_CONFIG", str(tmp_path / "other.yaml"))
    assert read_settings().max_batch_requests == 7


@pytest.mark.parametrize(
    ("variable", "value", "legal"),
    [
        ("SIE_HTTP_PORT", "abc", "must be a whole number"),
        ("SIE_HTTP_PORT", "70000", "less than or equal to 65535"),
        ("SIE_DEFAULT_COMPUTE_PRECISION", "int4", "'bfloat16'"),
        ("SIE_DEVICE", "mps", "use auto, cpu, cuda or cuda:N"),
        ("SIE_DEVICE", "gpu", "must be auto, cpu, cuda, or GPUs by number, such as cuda:0,cuda:2, or by UUID"),
        ("SIE_DEVICE", "cuda:0,cuda:0", "names a GPU twice"),
        ("SIE_MAX_LORAS_PER_MODEL", "0", "greater than or equal to 1"),
        ("SIE_MAX_LORAS_PER_MODEL", "1001", "less than or equal to 1000"),
        ("SIE_MAX_BATCH_WAIT_MS", "-1", "greater than or equal to 0"),
    ],
)
def test_an_invalid_value_error_names_the_variable_and_legal_values(monkeypatch, variable, value, legal):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=legal) as caught:
        read_settings()
    assert str(caught.value).startswith(f"{variable}={value}: ")


SIZES = [name for name in Settings.model_fields if name.endswith("_bytes")]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("4GB", 4 * 10**9),
        ("512MiB", 512 << 20),
        ("4 GB", 4 * 10**9),
        (" 1.5 gib ", 3 << 29),
        ("2097152", 1 << 21),
        ("3M", 3 * 10**6),
        ("2048kB", 2_048_000),
        ("2Ti", 1 << 41),
        ("2000000b", 2 * 10**6),
    ],
)
def test_a_number_of_bytes_may_have_a_unit(tmp_path, monkeypatch, value, number):
    wanted = dict.fromkeys(SIZES, number)
    given = read_settings(**dict.fromkeys(SIZES, value))
    (tmp_path / "sie.yaml").write_text("".join(f"{name}: '{value}'\n" for name in SIZES))
    in_file = read_settings()
    (tmp_path / "sie.yaml").unlink()
    for name in SIZES:
        monkeypatch.setenv(variable(name), value)
    for settings in (given, in_file, read_settings()):
        assert settings.model_dump(include={*SIZES}) == wanted


@pytest.mark.parametrize(
    "value", ["4XB", "GB", "-4GB", "4GBB", "1.5", "4 4", "", "4ib", "9" * 50, "0.3kib", "٤GB", "inf"]
)
def test_another_unit_is_refused(value):
    with pytest.raises(SettingsError, match=r"^--max-image-bytes=.*: must be .* MB, .* MiB"):
        read_settings(max_image_bytes=value)


@pytest.mark.parametrize("value", ["x y", "-1", 1.5, 10**30, [1], {"a": 1}])
def test_errors_are_in_the_words_of_the_settings(value):
    """No word of pydantic, and none of Python's types or our classes."""
    with pytest.raises(SettingsError) as caught:
        read_settings(**dict.fromkeys(Settings.model_fields, value))
    said = str(caught.value)
    assert not re.search(r"Input|String|dictionary|instance|parse|valid |Error|integer|boolean|Settings", said)


def test_a_bad_flag_and_a_bad_key_are_named_as_such(tmp_path):
    with pytest.raises(SettingsError, match=r"^--http-port=0: "):
        read_settings(http_port=0)
    (tmp_path / "sie.yaml").write_text("http_prot: 1")
    with pytest.raises(SettingsError, match=r"^sie.yaml: unknown key http_prot; did you mean http_port\?$"):
        read_settings()
    (tmp_path / "sie.yaml").write_text("colour: red")
    with pytest.raises(SettingsError, match=r"^sie.yaml: unknown key colour; sie-triton serve --help-all lists all"):
        read_settings()
    (tmp_path / "sie.yaml").write_text("http_port: 0")
    with pytest.raises(SettingsError, match=r"^sie.yaml: http_port=0: "):
        read_settings()


@pytest.mark.parametrize("content", [b"- a", b"1: 2", b"hello", b"\xff\xfe", b"a: ["])
def test_an_invalid_settings_file_is_refused(tmp_path, content):
    (tmp_path / "sie.yaml").write_bytes(content)
    with pytest.raises(SettingsError, match=r"^sie.yaml: (must contain one setting per line|not valid YAML)"):
        read_settings()


def test_a_named_settings_file_must_exist(monkeypatch):
    monkeypatch.setenv("SIE_CONFIG", "/nowhere")
    with pytest.raises(SettingsError, match=r"^SIE_CONFIG=/nowhere: No such file or directory$"):
        read_settings()


def test_a_setting_that_is_missing_is_named_by_its_variable(monkeypatch):
    monkeypatch.setenv("SIE_AUTH_MODE", "token")
    with pytest.raises(SettingsError, match=r"^SIE_AUTH_TOKENS: auth_mode token needs at least one token$"):
        read_settings()


def test_a_secret_may_be_in_a_file(tmp_path, monkeypatch):
    (tmp_path / "tokens").write_text("one\ntwo\n")
    monkeypatch.setenv("SIE_AUTH_TOKENS", "@tokens")
    (tmp_path / "admin").write_text("three\n")
    settings = read_settings(auth_mode="token", admin_token="@admin")
    assert (tokens(settings.auth_tokens), tokens(settings.admin_token)) == (("one", "two"), ("three",))
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "bytes").write_bytes(b"\xff")
    for name in ("nowhere", "empty", "bytes"):
        with pytest.raises(SettingsError, match=f"^--admin-token: {tmp_path / name} "):
            read_settings(admin_token=f"@{name}")
    with pytest.raises(SettingsError, match=r"^--admin-token: is one of auth_tokens"):
        read_settings(auth_mode="token", admin_token="@tokens")


def test_the_singular_variable_holds_one_more_token(tmp_path, monkeypatch):
    """SIE's name, beside SIE_AUTH_TOKENS."""
    monkeypatch.setenv("SIE_AUTH_TOKEN", "one")
    assert read_settings(auth_mode="token").auth_tokens == "one"
    (tmp_path / "tokens").write_text("two\n")
    monkeypatch.setenv("SIE_AUTH_TOKENS", "@tokens")
    assert tokens(read_settings(auth_mode="token").auth_tokens) == ("two", "one")
    assert read_settings(auth_mode="token", auth_tokens="three").auth_tokens == "three,one"
    monkeypatch.delenv("SIE_AUTH_TOKENS")
    (tmp_path / "sie.yaml").write_text("auth_tokens: four\n")
    assert read_settings(auth_mode="token").auth_tokens == "four,one"
    monkeypatch.setenv("SIE_AUTH_TOKEN", "@nowhere")
    with pytest.raises(SettingsError, match="nowhere cannot be read"):
        read_settings()
    assert unknown_variables() == []


def test_with_token_auth_inner_ports_default_to_loopback():
    tokens = {"auth_mode": "token", "auth_tokens": "t"}
    assert read_settings(host="0.0.0.0").inner_host == "0.0.0.0"
    assert read_settings(host="0.0.0.0", **tokens).inner_host == "127.0.0.1"
    assert read_settings(host="0.0.0.0", triton_host="127.0.0.3", **tokens).inner_host == "127.0.0.3"
    assert read_settings(triton_host="127.0.0.3").inner_host == "127.0.0.3"
    assert settings_of_running(host="127.0.0.4", **tokens).inner_host == "127.0.0.4"
    assert settings_of_running(host=None, **tokens).inner_host == "127.0.0.1"


def test_unknown_variables_are_reported(monkeypatch):
    monkeypatch.setenv("SIE_MAX_BATCH_REQUEST", "1")
    monkeypatch.setenv("SIE_HTTP_PORT", "1")
    monkeypatch.setenv("SIE_IPC_SOCKET_PATH", "a.sock")
    monkeypatch.setenv("SIE_POOL", "l4")
    of_cluster, misspelled = unknown_variables()
    assert re.match(r"SIE_MAX_BATCH_REQUEST .*; did you mean SIE_MAX_BATCH_REQUESTS\?$", misspelled)
    assert of_cluster == f"SIE_IPC_SOCKET_PATH has no effect here: {NOT_READ['SIE_IPC_SOCKET_PATH']}"


def test_the_page_for_sies_users_names_each_variable_that_is_not_read():
    page = (Path(__file__).parents[3] / "docs" / "migrating-from-sie.md").read_text()
    assert [name for name in NOT_READ if f"`{name}`" not in page] == []


def test_a_directory_models_is_that_of_the_model_files_if_it_has_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_settings().models_dir is None
    directory = tmp_path / "models"
    directory.mkdir()
    (directory / "compose.yaml").write_text("services: {}")
    (directory / "notes.txt").write_text("sie_id: a")
    assert read_settings().models_dir is None
    (directory / "a.yml").write_text("# mine\nsie_id: a\n")
    assert read_settings().models_dir == Path("models")
    assert read_settings(models_dir="other").models_dir == Path("other")


def shown_settings(*flags: str) -> dict[str, dict]:
    told = CliRunner().invoke(cli, ["config", "--json", *flags])
    assert told.exit_code == 0, told.output
    return {each["name"]: each for each in map(json.loads, told.stdout.splitlines())}


def test_config_shows_the_value_and_the_source_of_each_setting(tmp_path, monkeypatch):
    for name in Settings.model_fields:
        monkeypatch.delenv(variable(name), raising=False)
    assert {name: (each["source"], each["effect"]) for name, each in shown_settings().items()} == {
        name: ("default", field.description) for name, field in Settings.model_fields.items()
    }
    (tmp_path / "sie.yaml").write_text("http_port: 1\ngrpc_port: 1\nadmin_token: x\nmodels_dir: /a\nlog_json: true\n")
    monkeypatch.setenv("SIE_HTTP_PORT", "2")
    monkeypatch.setenv("SIE_GRPC_PORT", "2")
    shown = shown_settings("--http-port=3", "--no-log-json")
    assert {name: (str(shown[name]["value"]), shown[name]["source"]) for name in SHOWN} == SHOWN


SHOWN = {
    "http_port": ("3", "--http-port"),
    "grpc_port": ("2", "SIE_GRPC_PORT"),
    "admin_token": ("(hidden)", "sie.yaml"),
    "models_dir": ("/a", "sie.yaml"),
    "log_json": ("False", "--log-json"),
}


def test_config_shows_what_is_set_and_names_variables_of_a_cluster(monkeypatch):
    monkeypatch.setenv("SIE_RUST_PIPELINE_DEPTH", "2")
    monkeypatch.setenv("SIE_ADMIN_TOKEN", "secret")
    monkeypatch.setenv("SIE_HTTP_PRT", "1")
    result = CliRunner().invoke(cli, ["config", "--changed", "--max-batch-requests=8"])
    assert re.search(r"^warning: SIE_HTTP_PRT .*; did you mean SIE_HTTP_PORT\?$", result.stderr, re.MULTILINE)
    told = result.stdout
    assert "max_batch_requests: 8  (--max-batch-requests)\n    maximum number of requests whose items" in told
    assert "admin_token: (hidden)  (SIE_ADMIN_TOKEN)" in told
    assert "secret" not in told
    assert "http_port" not in told
    assert "warning: SIE_RUST_PIPELINE_DEPTH has no effect here: " in result.stderr


def test_every_setting_is_a_flag_of_serve_with_its_variable():
    text = CliRunner().invoke(cli, ["serve", "--help-all"], terminal_width=200).output
    for name in Settings.model_fields.keys() - ClusterSettings.model_fields.keys():
        assert len(re.findall(rf"^  {flag(name)} ", text, re.MULTILINE)) == 1
        assert f"SIE_{name.upper()}" in text
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert titles == ["Options", *(title for title in GROUPS if title != "A cluster")]


@pytest.mark.parametrize("command", [["serve"], ["config"], ["cluster", "up"]])
def test_help_shows_the_usual_settings_and_how_to_see_all(command):
    text = CliRunner().invoke(cli, [*command, "--help"], terminal_width=80).output
    assert {"--help-all", *map(flag, USUAL.split())} <= set(re.findall(r"--[\w-]+", text))
    assert flag("door_max_items") not in text
    assert len(text.splitlines()) < 120


def test_the_defaults_of_stages_are_those_of_the_settings(monkeypatch):
    monkeypatch.delenv("SIE_ENGINE")
    assert read_settings().portable_runtime == Runtime()
    assert read_settings(default_compute_precision="bfloat16").portable_runtime == Runtime(precision="bfloat16")


OWN_NAMES = {"precision", "status_dir", "loras_dir", "cache_dir", "measurements_dir", "environments_dir"}


@pytest.mark.parametrize("name", [each.name for each in fields(Runtime) if each.name not in OWN_NAMES])
def test_a_setting_of_stages_is_a_flag_of_render_and_reaches_them(name):
    default = getattr(Runtime(), name)
    changed = {"device": "cpu", "attention_backend": "eager", "engine": "onnx", "cluster_cache": "file:///srv/w"}.get(
        name
    )
    value = changed or (not default if isinstance(default, bool) else default + 1)
    assert getattr(read_settings(**{name: value}).portable_runtime, name) == value
    assert name in {parameter.name for parameter in cli.commands["render"].params}


def test_stages_get_the_settings_of_lora_adapters(tmp_path):
    obeyed = read_settings(data_dir="data").runtime
    assert (obeyed.max_loras_per_model, obeyed.allow_client_lora, obeyed.loras_dir) == (
        10,
        False,
        f"{tmp_path}/data/loras",
    )
    changed = read_settings(max_loras_per_model=3, allow_client_lora=True).portable_runtime
    assert (changed.max_loras_per_model, changed.allow_client_lora, changed.loras_dir) == (3, True, "")
