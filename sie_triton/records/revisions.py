"""Names of ensembles and steps: each change of a model on a running server makes a new revision of its steps.

    org__name@2-preprocess → org__name@2-inference → org__name@2-postprocess

The ensembles keep the names that clients call. No model's own name contains `@`. Newer releases of Triton's Python
backend refuse `~` and other characters that are special to a shell.
"""

import re

from sie_triton.contract import TASKS

MARK = "@"


def steps_name(model: str, revision: int) -> str:
    """Return the prefix of the names of a model's steps; `model` is Triton's name of the model.

    >>> steps_name("org__name", 0), steps_name("org__name", 2)
    ('org__name', 'org__name@2')
    """
    return f"{model}{MARK}{revision}" if revision else model


def model_of(steps: str) -> str:
    """
    >>> model_of("org__name@2"), model_of("org__name")
    ('org__name', 'org__name')
    """
    return steps.partition(MARK)[0]


def ensembles_of(model: str) -> list[str]:
    """Return the names of all ensembles that a model may have: its own, and those of its further tasks."""
    return [model, *(f"{model}-{task}" for task in TASKS)]


def revision_of(steps: str) -> int:
    """
    >>> revision_of("org__name@2"), revision_of("org__name")
    (2, 0)
    """
    return int(steps.partition(MARK)[2] or 0)


def steps_behind(config: str) -> str:
    """Return the prefix of the steps of an ensemble, given its configuration as text; empty for that of a step.

    >>> steps_behind('step { model_name: "org__name@2-preprocess" model_version: -1')
    'org__name@2'
    """
    found = re.search(r'model_name: "([^"]+)-preprocess"', config)
    return found[1] if found else ""
