"""A model that was changed on a running server has steps of a new edition, with its number in their names.

    org__name@2-preprocess → org__name@2-inference → org__name@2-postprocess

The ensembles keep the names that clients call. `@` is in no model's own name; `~` would be refused by newer releases of
Triton's Python backend, as is whatever a shell takes for its own.
"""

import re

MARK = "@"

FIRST_STEP = re.compile(r'model_name: "([^"]+)-preprocess"')


def steps_name(model: str, edition: int) -> str:
    """What the names of a model's steps begin with; `model` is Triton's name of it.

    >>> steps_name("org__name", 0), steps_name("org__name", 2)
    ('org__name', 'org__name@2')
    """
    return f"{model}{MARK}{edition}" if edition else model


def model_of(steps: str) -> str:
    """
    >>> model_of("org__name@2"), model_of("org__name")
    ('org__name', 'org__name')
    """
    return steps.partition(MARK)[0]


def edition_of(steps: str) -> int:
    """
    >>> edition_of("org__name@2"), edition_of("org__name")
    (2, 0)
    """
    return int(steps.partition(MARK)[2] or 0)


def steps_behind(config: str) -> str:
    """By the text of an ensemble's configuration; empty where it is that of a step.

    >>> steps_behind('step { model_name: "org__name@2-preprocess" model_version: -1')
    'org__name@2'
    """
    found = FIRST_STEP.search(config)
    return found[1] if found else ""
