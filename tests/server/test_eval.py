"""`sie-triton eval` on a small dataset: quality, speed and targets, beside sentence-transformers. Imports mteb once."""

import json
import shutil
import socket
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from sie_triton.cli import cli
from sie_triton.cli.evaluation.metrics import QUALITY, SPEED
from tests.conftest import COLBERT, CROSS_ENCODER, MINILM, MINILM_CLS, SPLADE

GARDEN = Path(__file__).parents[1] / "support" / "kitchen_garden"


@pytest.fixture
def evaluate(server):
    def run(*arguments, task=GARDEN):
        given = ["eval", *map(str, arguments), "-t", str(task), "--url", f"grpc://{server.grpc}", "--json"]
        return CliRunner().invoke(cli, given, catch_exceptions=False)

    return run


@pytest.fixture
def addresses(monkeypatch):
    """Addresses other than this machine's own that Python connects to or looks up."""
    found, connect, look_up = [], socket.socket.connect, socket.getaddrinfo

    def connecting(connection, address):
        if connection.family != socket.AF_UNIX and address[0] != "127.0.0.1":
            found.append(address)
        return connect(connection, address)

    def looking_up(host, *rest, **named):
        if host not in ("127.0.0.1", b"127.0.0.1"):
            found.append(host)
        return look_up(host, *rest, **named)

    monkeypatch.setattr(socket.socket, "connect", connecting)
    monkeypatch.setattr(socket, "getaddrinfo", looking_up)
    return found


@pytest.fixture
def short_garden(tmp_path):
    """The first queries and some documents, for models that read each pair."""
    (tmp_path / "garden" / "qrels").mkdir(parents=True)
    for name, lines in ("corpus.jsonl", 12), ("queries.jsonl", 4), ("qrels/test.tsv", 5):
        kept = (GARDEN / name).read_text().splitlines(keepends=True)[:lines]
        kept = [line for line in kept if "onion" not in line]
        (tmp_path / "garden" / name).write_text("".join(kept))
    return tmp_path / "garden"


def test_vectors_of_a_server_rank_as_the_librarys(evaluate, door, addresses, tmp_path):
    picture = tmp_path / "eval.png"
    done = evaluate(MINILM, "-s", f"sie,door={door},st,targets", "--plot", picture)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    ours, theirs = found["sources"]["sie"], found["sources"]["st"]
    assert set(ours) == set(QUALITY)
    assert ours == pytest.approx(theirs, rel=1e-3)
    assert found["sources"]["door"] == pytest.approx(theirs, rel=1e-3)
    assert 0.5 < ours["ndcg_at_10"] < 1
    assert found["targets"] == yaml.safe_load((GARDEN / "eval.yaml").read_text())[MINILM]
    assert found["misses"] == []
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert addresses == []


def test_another_pooling_misses_the_target(evaluate, tmp_path):
    targets = tmp_path / "targets.yaml"
    targets.write_text(yaml.safe_dump({MINILM_CLS: {"ndcg_at_10": 0.8477, "recall_at_100": 1.0}}))
    done = evaluate(MINILM_CLS, "-s", "sie,targets", "--targets", targets)
    assert done.exit_code == 1
    found = json.loads(done.stdout.splitlines()[-1])
    value = found["sources"]["sie"]["ndcg_at_10"]
    assert value < 0.99 * 0.8477
    assert found["misses"] == [{"metric": "ndcg_at_10", "value": value, "target": 0.8477}]
    assert f"missed target: ndcg_at_10: {value:.4g} is below the target 0.8477" in done.stderr
    assert evaluate(MINILM_CLS, "-s", "sie,targets", "--targets", targets, "--tolerance", 0.9).exit_code == 0


@pytest.mark.parametrize(("model", "by"), [(CROSS_ENCODER, "score"), (SPLADE, "sparse"), (COLBERT, "multivector")])
def test_other_outputs_rank_as_the_librarys(evaluate, door, short_garden, model, by):
    """The server says from which directories it serves models; no model file is named here."""
    done = evaluate(model, "--by", by, "-s", f"sie,door={door},st", task=short_garden)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])["sources"]
    assert found["st"]["ndcg_at_10"] > 0
    assert found["sie"] == pytest.approx(found["st"], rel=1e-3)
    assert found["door"] == pytest.approx(found["st"], rel=1e-3)


def test_speed_takes_turns_and_meets_no_impossible_target(evaluate, door, tmp_path):
    task = tmp_path / "garden"
    shutil.copytree(GARDEN, task)
    (task / "eval.yaml").write_text(yaml.safe_dump({MINILM: {"query_items_per_s": 1e9, "corpus_p50_ms": 1e6}}))
    small = ["--rounds", 2, "--texts", 8, "--batch", 4, "--clients", 2, "--singles", 2]
    done = evaluate(MINILM, "--type", "perf", "-s", f"sie,door={door},st,targets", *small, task=task)
    assert done.exit_code == 1
    found = json.loads(done.stdout.splitlines()[-1])
    assert [set(SPEED) <= set(each) for each in found["sources"].values()] == [True, True, True]
    assert all(value > 0 for each in found["sources"].values() for name, value in each.items() if name in SPEED)
    assert set(found["ratios"]) == {"door", "st"}
    assert [miss["metric"] for miss in found["misses"]] == ["query_items_per_s"]


def test_a_task_of_mteb_itself(evaluate, monkeypatch):
    """One of mteb's own test tasks, because others are fetched from the hub."""
    import mteb
    from mteb.mocks.mock_tasks.retrieval import MockRetrievalTask

    class Task(MockRetrievalTask):
        metadata = MockRetrievalTask.metadata.model_copy(update={"eval_splits": ["test"]})

    monkeypatch.setattr(mteb, "get_task", lambda name: Task())
    done = evaluate(MINILM, task="mteb/MockRetrievalTask")
    assert json.loads(done.stdout.splitlines()[-1])["sources"]["sie"]["recall_at_10"] == 1
