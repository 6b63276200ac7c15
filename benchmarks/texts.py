"""Texts for benchmarks and tests; the same seed gives the same texts on every machine."""

import json
import math
import random
from collections.abc import Mapping
from pathlib import Path

WORDS = """
a about after again air all along also always an and another any are around as ask at away back be because been
before began being below between big book both boy but by call came can car carry change children city close come
could country cut day did different do does done door down each early earth eat end enough even every eye face
family far father feet few find first follow food for form found four from gave get girl give go good great group
grow had hand hard has have he head hear help her here high him his home house how idea if important in into is it
just keep kind know land large last late learn leave left letter life light like line list little live long look
made make man many may mean men might mile miss more most mother mountain move much music must name near need never
new next night no not now number of off often old on once one only open or other our out over own page paper part
people place plant play point press quantum query rain ran read real right river run said same saw say school
science sea second see seem sentence server set she should show side small so some song soon spell start state stop
story study such take talk tell temperature than that the their them then there these they thing think this thought
three through time to together took tree try turn two under until up us use vector very walk want was watch water
way we well went were what when where which while white who why will with without word work world would write year
you young your
""".split()  # noqa: SIM905


def texts(count: int, min_words: int = 20, max_words: int = 60, seed: int = 0) -> list[str]:
    """Return `count` texts of uniformly distributed length."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(min_words, max_words))) for _ in range(count)]


def log_normal_texts(count: int, median_words: int = 60, seed: int = 0) -> list[str]:
    """Return `count` texts of log-normal length, 5 to 400 words: many short ones, a few long ones."""
    rng = random.Random(seed)
    lengths = (round(rng.lognormvariate(math.log(median_words), 1.0)) for _ in range(count))
    return [" ".join(rng.choices(WORDS, k=min(400, max(5, length)))) for length in lengths]


def write_input_data(
    path: Path, items: list[str], beside: Mapping[str, list[str]] | None = None, *, size: int = 1
) -> None:
    """Write a file for perf_analyzer's --input-data: one request per `size` texts, each with the inputs `beside`."""
    asked = [{"text": items[i : i + size], **(beside or {})} for i in range(0, len(items), size)]
    data = [{name: {"content": values, "shape": [len(values)]} for name, values in each.items()} for each in asked]
    path.write_text(json.dumps({"data": data}))
