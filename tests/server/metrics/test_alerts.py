"""Each alert fires once for the series that it is about, and clears."""

import subprocess
from pathlib import Path

from tests.support.prometheus import ALERTS, RULES, Firing, fires_and_clears, needs


def test_promtool_accepts_the_rules():
    done = subprocess.run([needs("promtool"), "check", "rules", str(RULES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


POOL = 'namespace="prod", pool="default"'

FIRINGS = {
    "SieDown": Firing({'up{job="sie", instance="a"}': "1x4 0x5 1x20"}, (4, 15), 8),
    "SieErrors": Firing(
        {
            'sie_request_errors_total{instance="a", model="m", kind="model"}': "0x4 0+6x15 90x40",
            'sie_request_duration_seconds_count{instance="a", model="m", verb="encode"}': "0+60x60",
        },
        (4, 40),
        18,
    ),
    "SieModelFailed": Firing({'sie_model_state{model="m", state="failed"}': "0x4 1x5 0x20"}, (4, 15), 8),
    "SieChurn": Firing(
        {'sie_swaps_total{instance="a", model="m", reason="evict: room"}': "0+60x30 1800x60"}, (5, 60), 25
    ),
    "SieWorkersDie": Firing({'sie_workers_replaced_total{instance="a", model="m"}': "0x4 0+1x4 4x60"}, (4, 40), 10),
    "SieNoReadyWorker": Firing(
        {
            f"sie_gateway_ready_workers{{{POOL}}}": "2x4 0x15 1x20",
            f"sie_gateway_worker_queue_depth{{{POOL}}}": "5x60",
        },
        (4, 30),
        15,
    ),
    "SieQueueLong": Firing(
        {
            f"sie_gateway_ready_workers{{{POOL}}}": "1x20 10x40",
            f"sie_gateway_worker_queue_depth{{{POOL}}}": "200x60",
            f"sie_gateway_waiting_requests{{{POOL}}}": "300x60",
        },
        (5, 30),
        15,
    ),
    "SieRequestsRefused": Firing({f"sie_gateway_rejected_requests_total{{{POOL}}}": "0x4 0+60x15 900x40"}, (4, 40), 15),
    "SieDeadLetters": Firing({'sie_sidecar_work_total{instance="w", outcome="dead"}': "0x4 1x120"}, (4, 90), 10),
    "SieQueueNearlyFull": Firing({f"sie_gateway_queue_fill_ratio{{{POOL}}}": "0.1x4 0.9x10 0.1x30"}, (4, 30), 12),
    "SieQueueTakesNothing": Firing(
        {f"sie_gateway_unstored_requests_total{{{POOL}}}": "0x4 0+60x15 900x40"}, (4, 40), 15
    ),
    "SieModelFilesBehind": Firing(
        {
            'sie_config_epoch{namespace="prod", instance="c"}': "3x4 4x60",
            'sie_sidecar_config_epoch{namespace="prod", instance="w"}': "3x30 4x60",
        },
        (4, 50),
        20,
    ),
}


def test_each_alert_has_an_input_that_fires_it():
    assert FIRINGS.keys() == ALERTS.keys()


def test_each_alert_fires_and_clears(tmp_path: Path):
    fires_and_clears(RULES, tmp_path, FIRINGS)
