"""`scripts/simulate`."""

import json

from click.testing import CliRunner

from benchmarks.simulation.__main__ import simulate
from benchmarks.simulation.parameters import Parameters

SMALL = ["--workers", "2,3", "--load", "0.2", "--models", "5", "--seconds", "5"]


def run(*arguments):
    return CliRunner().invoke(simulate, [*SMALL, *arguments], catch_exceptions=False)


def test_files_hold_all_results_by_the_parameters_of_a_file(tmp_path):
    (tmp_path / "p.json").write_text('{"request_s": 0.05, "max_calls": 4}')
    result = run("--parameters", str(tmp_path / "p.json"), "--output", str(tmp_path / "out"))
    assert result.exit_code == 0
    assert "Scenario steady" in result.output
    document = json.loads((tmp_path / "out" / "simulation.json").read_text())
    assert [(each["num_workers"], each["load"], each["rules"]) for each in document["results"]] == [
        (workers, 0.2, rules) for workers in (2, 3) for rules in ("ours", "reference")
    ]
    changed = {"request_s": 0.05, "max_calls": 4}
    assert Parameters().changed(document["parameters"]) == Parameters().changed(changed)
    assert (tmp_path / "out" / "simulation.md").exists()
    for name in ("p99", "loads", "cost"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
