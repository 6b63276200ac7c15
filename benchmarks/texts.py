"""Texts of many lengths; the same seed gives the same texts on every machine."""

import math
import random

from sie_triton.cli.perf.workload import WORDS


def log_normal_texts(count: int, median_words: int = 60, seed: int = 0) -> list[str]:
    """Return `count` texts of log-normal length, 5 to 400 words: many short ones, a few long ones."""
    rng = random.Random(seed)
    lengths = (round(rng.lognormvariate(math.log(median_words), 1.0)) for _ in range(count))
    return [" ".join(rng.choices(WORDS, k=min(400, max(5, length)))) for length in lengths]
