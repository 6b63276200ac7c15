"""The likeliest path of BIOES labels, found by trying: what a model with a calibration must decode."""

from itertools import pairwise, product

KINDS = ("person", "e-mail")
LABELS = ("O", *(f"{mark}-{kind}" for kind in KINDS for mark in "BIES"))

BIASES = {
    "transition_bias_background_stay": 0.3,
    "transition_bias_background_to_start": -0.7,
    "transition_bias_inside_to_continue": 1.1,
    "transition_bias_inside_to_end": -0.2,
    "transition_bias_end_to_background": 0.6,
    "transition_bias_end_to_start": -1.3,
}


def calibration(biases=BIASES):
    return {"operating_points": {"default": {"biases": biases}}}


def bias(before: str, after: str) -> float | None:
    """The bias of a step from label to label; None if it is not allowed."""
    mark, kind = before[0], before[2:]
    if mark in "BI":
        step = {f"I-{kind}": "inside_to_continue", f"E-{kind}": "inside_to_end"}.get(after)
    elif after[0] in "BS":
        step = "background_to_start" if mark == "O" else "end_to_start"
    else:
        step = None if after != "O" else "background_stay" if mark == "O" else "end_to_background"
    return None if step is None else BIASES[f"transition_bias_{step}"]


def total(path, scores) -> float | None:
    """The sum of a path's scores and biases; None if it is not allowed."""
    steps = [bias(before, after) for before, after in pairwise(path)]
    if None in steps or path[0][0] in "IE" or path[-1][0] in "BI":
        return None
    return sum(steps) + sum(float(row[LABELS.index(label)]) for label, row in zip(path, scores, strict=True))


def tried(scores):
    """The best of all paths."""
    paths = [path for path in product(LABELS, repeat=len(scores)) if total(path, scores) is not None]
    return max(paths, key=lambda path: total(path, scores))


def searched(scores):
    """The best path, by the best one to each label of each token: for long texts."""
    best = {label: ((label,), float(scores[0][i])) for i, label in enumerate(LABELS) if label[0] not in "IE"}
    for row in scores[1:]:
        reached = {}
        for i, label in enumerate(LABELS):
            steps = [
                (path, value + bias(path[-1], label))
                for path, value in best.values()
                if bias(path[-1], label) is not None
            ]
            if steps:
                path, value = max(steps, key=lambda step: step[1])
                reached[label] = ((*path, label), value + float(row[i]))
        best = reached
    return max((best[label] for label in best if label[0] not in "BI"), key=lambda found: found[1])[0]


def spans(path):
    """Index of the first and the last token of each entity, and its kind."""
    starts = [i for i, label in enumerate(path) if label[0] in "BS"]
    ends = [i for i, label in enumerate(path) if label[0] in "ES"]
    return [(start, end, path[start][2:]) for start, end in zip(starts, ends, strict=True)]
