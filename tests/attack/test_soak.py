"""`scripts/soak` in short: faults of a seed, and every answer is right."""

import json
import subprocess
import sys

import pytest

SHORT = ("--rest", "3", "4", "--encoders=3", "--texts=8", "--pause=0.5", "--memory=4000000000")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("scope", "minutes", "faults"),
    [
        ("server", 0.38, ["exchanged weights"]),
        # The first fault is a kill, which takes no time: the second one has some to spare.
        ("cluster", 0.47, ["kill stage", "stop sidecar"]),
    ],
)
def test_faults_cost_no_answer(tmp_path, scope, minutes, faults):
    flags = [f"--scope={scope}", f"--minutes={minutes}", *SHORT, *(f"--fault={fault}" for fault in faults)]
    command = [sys.executable, "-m", "tests.soak", *flags, f"--logs={tmp_path / 'logs'}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    bad = {name: told[name] for name in ("wrong", "unanswered", "unexplained", "fallen_counters") if told[name]}
    assert bad == {}, done.stderr[-3000:]
    assert told["right"] > 100
    assert {*told["back_s"]} == {*faults}
