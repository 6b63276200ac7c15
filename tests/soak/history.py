"""What clients asked and got, and a check of it afterwards: no answer is wrong, doubled or missing."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

NO_FAULT = "no fault"

# Clients of Triton's own port, or of a gateway's gRPC; the others speak HTTP to a door.
OF_TRITON = ("tritonclient", "changes")

# The client of a model that is changed all the time, and so has to load.
OF_COLD_MODEL = "changes"

# Characters of an error that are kept, and what differs from run to run.
MAX_ERROR = 160
OF_A_RUN = re.compile(r"(?:grpc://|http://|ipv4:)?127\.0\.0\.1:\d+|/\S*/sie-soak-\w+")

# Outcomes of a request.
RIGHT, WRONG, REFUSED, FAILED = "right", "wrong", "refused", "failed"

# A request has no answer if none came so many seconds after its timeout.
GRACE_S = 2.0

# Answers that come so soon after a fault, in seconds, may have been on their way.
ON_THE_WAY_S = 0.5

# Time in which a service must be back after a fault, in seconds.
BACK_S = 8.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A request. Times are in seconds of the monotonic clock; `error` is the text of a refusal or failure."""

    client: str
    model: str
    began: float
    ended: float
    outcome: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Happened:
    """A fault.

    `hurts`: clients whose own process it ended, so that their requests in progress may fail. `cools`: it ended the
    process that holds all models, which load again with their next requests.
    """

    name: str
    began: float
    ended: float
    hurts: frozenset[str] = frozenset()
    cools: bool = False

    def is_beside(self, entry: Entry) -> bool:
        """Return True if a request was in progress, or began before the service had to be back."""
        return entry.ended >= self.began and entry.began <= self.ended + BACK_S

    def explains(self, entry: Entry) -> bool:
        return entry.client in self.hurts and self.is_beside(entry)


@dataclass
class Verdict:
    """What a check found.

    `back_s`: by fault, the seconds until every client had a right answer again, and the last, without OF_COLD_MODEL;
    after a fault that cools all models, the first client of each port counts. `all_back_s`: the seconds until every
    client had one.
    `told`: by fault, the outcomes and errors of requests that got no answer. `waits`: by fault that lasted too long,
    what the last client got until then. `calm_s`: the longest time of an answer beside no fault, which loads and
    evictions take, too.
    """

    num_right: int
    wrong: list[Entry] = field(default_factory=list)
    unanswered: list[Entry] = field(default_factory=list)
    unexplained: list[Entry] = field(default_factory=list)
    told: dict[str, Counter[tuple[str, str]]] = field(default_factory=dict)
    back_s: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    all_back_s: dict[str, list[float]] = field(default_factory=dict)
    waits: dict[str, list[str]] = field(default_factory=dict)
    calm_s: float = 0.0

    def num_told(self, outcome: str, fault: str = "") -> int:
        """Return how many requests had this outcome, beside a fault or all."""
        of = [self.told.get(fault, {})] if fault else self.told.values()
        return sum(number for errors in of for (each, _), number in errors.items() if each == outcome)

    @property
    def late(self) -> dict[str, tuple[float, str]]:
        """Return the faults after which the service was back too late, with the longest time."""
        longest = {name: max(times) for name, times in self.back_s.items()}
        return {name: each for name, each in longest.items() if each[0] > BACK_S}

    @property
    def is_good(self) -> bool:
        return self.num_right > 0 and not (self.wrong or self.unanswered or self.unexplained or self.late)


def check(entries: Sequence[Entry], faults: Iterable[Happened], timeout_s: float) -> Verdict:
    """Return the verdict on a history.

    >>> killed = Happened("kill door", 10.0, 10.0, frozenset({"http"}))
    >>> entries = [Entry("http", "m", 9.0, 10.1, FAILED, "closed"), Entry("http", "m", 11.0, 12.0, RIGHT)]
    >>> verdict = check(entries, [killed], 60)
    >>> verdict.is_good, verdict.back_s
    (True, {'kill door': [(2.0, 'http')]})
    >>> check([*entries, Entry("grpc", "m", 9.5, 10.2, FAILED, "closed")], [killed], 60).is_good
    False
    """
    faults = sorted(faults, key=lambda fault: fault.began)
    verdict = Verdict(sum(each.outcome == RIGHT for each in entries))
    for each in entries:
        if each.outcome == WRONG:
            verdict.wrong.append(each)
        elif each.ended - each.began > timeout_s + GRACE_S:
            verdict.unanswered.append(each)
        elif each.outcome == FAILED and not any(fault.explains(each) for fault in faults):
            verdict.unexplained.append(each)
        elif each.outcome != RIGHT:
            beside = [fault.name for fault in faults if fault.is_beside(each)]
            errors = verdict.told.setdefault(beside[-1] if beside else NO_FAULT, Counter())
            errors[each.outcome, f"{each.client}: {shortened(each.error)}"] += 1
    clients = {each.client for each in entries}
    for fault in faults:
        after = [(_first_right(entries, client, fault.ended) - fault.ended, client) for client in clients]
        verdict.all_back_s.setdefault(fault.name, []).append(max(after)[0])
        warm = [each for each in after if each[1] != OF_COLD_MODEL] or after
        seconds, last = max(_first_of_each_port(after)) if fault.cools else max(warm)
        verdict.back_s.setdefault(fault.name, []).append((seconds, last))
        if seconds > BACK_S:
            verdict.waits[fault.name] = _waits(entries, last, fault, seconds)
    calm = (each for each in entries if not any(fault.is_beside(each) for fault in faults))
    verdict.calm_s = max((each.ended - each.began for each in calm), default=0.0)
    return verdict


def _first_of_each_port(after: Iterable[tuple[float, str]]) -> list[tuple[float, str]]:
    found: dict[bool, tuple[float, str]] = {}
    for each in sorted(after):
        found.setdefault(each[1] in OF_TRITON, each)
    return [*found.values()]


def _waits(entries: Iterable[Entry], client: str, fault: Happened, seconds: float) -> list[str]:
    """Return what a client got from the beginning of a fault until it was back."""
    theirs = (each for each in entries if each.client == client)
    during = (each for each in theirs if each.ended >= fault.began and each.ended <= fault.ended + seconds)
    return [
        f"{each.began - fault.ended:.1f} to {each.ended - fault.ended:.1f} s: {each.model}, {each.outcome} {each.error}"
        for each in during
    ]


def shortened(error: str) -> str:
    """Return an error without addresses and directories.

    >>> shortened("grpc://127.0.0.1:4000: no server answers; see /scratch/sie-soak-abc/data")
    '…: no server answers; see …/data'
    """
    return OF_A_RUN.sub("…", error)[:MAX_ERROR]


def _first_right(entries: Sequence[Entry], client: str, since: float) -> float:
    """Return when a client got its first right answer ON_THE_WAY_S after `since`, or later; infinite if never.

    A request that began before, and waited, counts, too: its answer shows that the service works again.
    """
    theirs = (each for each in entries if each.client == client and each.outcome == RIGHT)
    return min((each.ended for each in theirs if each.ended >= since + ON_THE_WAY_S), default=float("inf"))
