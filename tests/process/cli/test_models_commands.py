"""Output of `sie-triton models` in a terminal."""

import pytest
from click.testing import CliRunner

from benchmarks.ports import free_ports
from sie_triton.cli import cli
from sie_triton.errors import CatalogError
from sie_triton.models.catalog import load_file
from tests.conftest import MINILM
from tests.support import reference_files


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    reference_files.write(made)
    return made


def run(*arguments, status=0):
    result = CliRunner().invoke(cli, ["models", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def test_models_ls_lists_what_serve_would_start(directory):
    (port,) = free_ports(1)
    listed = run("ls", "--controller-port", port)
    assert listed.stderr == f"no server answers at 127.0.0.1:{port}; `serve` would start:\n"
    (line,) = listed.stdout.splitlines()
    assert line.split()[:3] == [MINILM, "dense", "384"]
    listed = run(
        "ls", "--models-dir", directory, "--model-filter", "org/reranker,org/reranker-[jmq]*,org/nemo*,org/bge*"
    )
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [
        *(
            "org/bge-m3",
            "org/bge-m3.flag",
            "org/nemo",
            "org/reranker-jina",
            "org/reranker-modernbert",
            "org/reranker-qwen3",
        ),
        "org/reranker",
    ]
    assert "org__nemo-v1.yaml: hf_id" in listed.stderr
    assert "is not served by this version" in listed.stderr


def test_models_ls_known_lists_every_known_model():
    names = run("ls", "--known").output.splitlines()
    assert {"BAAI/bge-m3", "intfloat/e5-base-v2", "docling"} <= set(names)
    assert len(names) == 246


def test_models_show_prints_the_resolved_configuration():
    shown = run("show", "intfloat/e5-base-v2").output
    for text in ("hub://intfloat/e5-base-v2", "mit", "sentence_transformer", "dense 768", "query: query: {text}"):
        assert text in shown


def test_a_directory_is_shown_without_a_file(tiny_directory):
    assert "dense 64" in run("show", tiny_directory).output


def test_models_init_writes_a_model_file_for_a_directory(tiny_directory, tmp_path):
    written = tmp_path / "tiny.yaml"
    run("init", tiny_directory, "--name", "my/tiny", "--output", written)
    assert run("init", tiny_directory, "--name", "my/tiny").output == written.read_text()
    config = load_file(written)
    assert (config.sie_id, config.weights, config.dims) == ("my/tiny", str(tiny_directory), {"dense": 64})
    assert written.read_text().startswith("# modules.json: Transformer, Pooling")
    assert "already exists" in run("init", tiny_directory, "--output", written, status=2).output


def test_models_check_reports_every_file(directory, tmp_path):
    said = run("check", directory).output.splitlines()
    served, planned = len(reference_files.SERVED), len(reference_files.NOT_SERVED)
    assert said[-1] == f"{served + planned} files, {planned} not served, {served} valid"
    assert any("org__rope.yaml: profiles.candle.adapter_path: " in line for line in said)
    assert any(line.startswith("note: ") and "mem_fraction_static: is not needed" in line for line in said)
    (tmp_path / "bad.yaml").write_text("sie_id: 5")
    said = run("check", tmp_path / "bad.yaml", directory / "org__st.yaml", status=1).output.splitlines()
    assert said[0].startswith(f"error: {tmp_path}/bad.yaml: sie_id: ")
    assert said[-1] == "2 files, 1 invalid, 1 valid"


def test_models_check_needs_an_argument():
    assert "name model files or directories" in run("check", status=2).output


def test_models_add_names_a_missing_file(tmp_path):
    with pytest.raises(CatalogError, match=r"missing\.yaml: no such file"):
        run("add", tmp_path / "missing.yaml")
