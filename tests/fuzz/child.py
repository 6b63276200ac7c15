"""Fuzzes one target, in a process that it may kill: `python -m tests.fuzz.child TARGET DIRECTORY CASES SEED`.

DIRECTORY/case      the case that runs: see `ledger`
DIRECTORY/found-N   a finding, pickled
DIRECTORY/stacks    where the process was when it crashed or was asked
"""

import faulthandler
import gc
import os
import pickle
import resource
import signal
import sys
import tempfile
from pathlib import Path

from sie_triton.system.processes.confined import die_first
from tests.fuzz.finding import Finding
from tests.fuzz.hunt import Hunt
from tests.fuzz.ledger import Ledger
from tests.fuzz.target import Target, target_named

CASE, STACKS, FOUND = "case", "stacks", "found-"

# Open files that a target may keep for later cases.
MAX_KEPT_FILES = 32


def main(reference: str, directory: Path, num_cases: int, start: int) -> None:
    stacks = (directory / STACKS).open("w")
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks)
    die_first()
    ledger, known = Ledger(directory / CASE), {each.place for each in findings_in(directory)}
    own = Path(tempfile.mkdtemp(prefix="child-", dir=directory))  # whatever the children before have left
    os.chdir(own)
    with target_named(reference)(own) as target:
        limit_memory(target)
        ledger.ready()
        hunt = Hunt(target, known, ledger.begin, ledger.end)
        num_files = len(os.listdir("/proc/self/fd"))
        for finding in hunt.run(num_cases, start):
            add_finding(directory, finding)
        gc.collect()  # an exception keeps its frames, and these their files, until then
        if (kept := len(os.listdir("/proc/self/fd")) - num_files) > MAX_KEPT_FILES:
            add_finding(directory, Finding("open files", f"{kept} files stay open after all cases", pickle.dumps(None)))


def limit_memory(target: Target) -> None:
    """Make allocations fail that are far beyond what the target has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + target.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def add_finding(directory: Path, finding: Finding) -> None:
    """Keep a finding; of several at one place, the one with the smallest case."""
    known = findings_in(directory)
    places = [each.place for each in known]
    number = places.index(finding.place) if finding.place in places else len(known)
    if number == len(known) or len(finding.case) < len(known[number].case):
        (directory / f"{FOUND}{number}").write_bytes(pickle.dumps(finding))


def findings_in(directory: Path) -> list[Finding]:
    """Return what this child, and others before it, have found."""
    paths = sorted(directory.glob(f"{FOUND}*"), key=lambda path: int(path.name.removeprefix(FOUND)))
    return [pickle.loads(path.read_bytes()) for path in paths]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
