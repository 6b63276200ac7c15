"""`scripts/simulate`."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from benchmarks.simulation.__main__ import simulate
from benchmarks.simulation.parameters import Parameters
from sie_triton.errors import InputError

SMALL = ["--workers", "2,3", "--load", "0.2,0.4", "--models", "5", "--seconds", "20"]


def run(*arguments):
    return CliRunner().invoke(simulate, [*SMALL, *arguments], catch_exceptions=False)


def test_files_hold_all_results(tmp_path):
    result = run("--output", str(tmp_path / "out"))
    assert result.exit_code == 0
    assert "Scenario steady" in result.output
    document = json.loads((tmp_path / "out" / "simulation.json").read_text())
    assert [(each["num_workers"], each["load"], each["rules"]) for each in document["results"]] == [
        (workers, load, rules) for workers in (2, 3) for load in (0.2, 0.4) for rules in ("ours", "reference")
    ]
    assert Parameters().changed(document["parameters"]) == Parameters()
    assert (tmp_path / "out" / "simulation.md").read_text().count("\n| ") == 10
    for name in ("p99", "loads", "cost"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_file_changes_parameters(tmp_path):
    (tmp_path / "p.json").write_text('{"request_s": 0.05, "max_calls": 4}')
    assert run("--parameters", str(tmp_path / "p.json"), "--output", str(tmp_path)).exit_code == 0
    assert json.loads((tmp_path / "simulation.json").read_text())["parameters"]["max_calls"] == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "must be a JSON object"),
        ('{"lod_s": 1}', "lod_s: is no parameter"),
        ('{"load_s": "1"}', "load_s: must be a number"),
        ('{"max_calls": 1.5}', "max_calls: must be an integer"),
        ('{"max_calls": true}', "max_calls: must be an integer"),
        ('{"request_s": 0}', "request_s: must be above 0"),
        ('{"load_s": -1}', "load_s: must be a number of at least 0"),
        ('{"load_s": NaN}', "load_s: must be a number of at least 0"),
        ('{"slow_load_ratio": 2}', "slow_load_ratio: must be at most 1"),
        ('{"lanes": 0}', "lanes"),
    ],
)
def test_wrong_parameters_are_named(tmp_path, text, message):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(InputError, match=message):
        run("--parameters", str(tmp_path / "p.json"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "workers: must be from 1"),
        (["--workers", ""], "workers: must be from 1"),
        (["--workers", "many"], "workers: must be numbers"),
        (["--workers", "1.5"], "workers: must be integers"),
        (["--load", "0"], "load: must be above 0"),
        (["--load", "nan"], "load: must be above 0"),
        (["--models", "0"], "models: must be from 1"),
        (["--seconds", "0"], "seconds: must be from 1"),
        (["--seconds", "nan"], "seconds: must be from 1"),
        (["--rules", "theirs"], "rules: must be of ours, reference"),
        (["--rules", ""], "rules: must be of ours, reference"),
        (["--workers", "10000", "--seconds", "600000"], "requests are too many"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        run(*arguments)


def test_the_simulation_needs_no_client_of_nats():
    code = (
        "import sys; sys.modules['nats'] = None; "
        "from click.testing import CliRunner; from benchmarks.simulation.__main__ import simulate; "
        f"result = CliRunner().invoke(simulate, {SMALL!r}, catch_exceptions=False); print(result.exit_code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "0", done.stderr
