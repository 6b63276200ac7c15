"""The runner of the check for GPU machines: one process a part, its time, and the report."""

import os
import re
import time

import pytest

from benchmarks.gpu_check import runner
from benchmarks.gpu_check.runner import Clock, Report
from benchmarks.gpu_check.scope import CheckPart, Finding, Plan

DRY = Plan("cpu", is_dry=True)


def works(plan):
    yield Finding("checks", "one", {"passed": True})


def fails(plan):
    yield Finding("checks", "one", {"passed": False})


def raises(plan):
    yield from works(plan)
    raise ValueError("no such kernel")


def dies(plan):
    yield from works(plan)
    os._exit(3)


def hangs(plan):
    yield from works(plan)
    time.sleep(60)


def lacks(plan):
    yield from works(plan)
    import no_such_package  # noqa: F401


def run(*parts: CheckPart, plan: Plan = DRY, minutes: float = 1) -> Report:
    return runner.run(parts, plan, Clock(minutes))


@pytest.mark.parametrize(
    ("work", "ending", "why"),
    [
        (raises, "failed", "ValueError: no such kernel"),
        (dies, "failed", "its process ended with status 3"),
        (hangs, "cut_off", r"not finished after \d s, and killed"),
        (lacks, "skipped", "no_such_package is not installed"),
    ],
)
def test_an_unfinished_part_is_reported_and_the_others_run(capfd, work, ending, why):
    found = run(
        CheckPart("good", works, 1), CheckPart("bad", work, 1, is_needed=True), CheckPart("last", works, 27), minutes=2
    )
    assert getattr(found, ending).keys() == {"bad"}
    assert re.fullmatch(why, getattr(found, ending)["bad"])
    assert found.holds == (ending == "skipped")
    assert len(found.checks) == 3  # earlier results are kept
    assert getattr(found, ending)["bad"] in capfd.readouterr().out


def test_parts_without_time_left_are_reported(capsys):
    found = run(CheckPart("good", works, 1), CheckPart("last", works, 1), minutes=0)
    assert found.cut_off == {"good": "no time was left", "last": "no time was left"}
    assert "last: not started, no time is left" in capsys.readouterr().out
    assert found.holds
    assert not run(CheckPart("kernels", works, 1, is_needed=True), minutes=0).holds


def test_one_failing_check_fails_the_run():
    assert run(CheckPart("good", works, 1)).holds
    assert not run(CheckPart("good", works, 1), CheckPart("bad", fails, 1)).holds


def test_a_report_is_written_after_each_part():
    seen = []
    runner.run(
        [CheckPart("good", works, 1), CheckPart("bad", raises, 1)],
        DRY,
        Clock(1),
        lambda each: seen.append(dict(each.failed)),
    )
    assert seen == [{}, {"bad": "ValueError: no such kernel"}]
