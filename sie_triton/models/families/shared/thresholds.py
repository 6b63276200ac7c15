"""Thresholds of families that extract."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sie_triton.contract import Parameter, ParameterValue

USUAL_THRESHOLD = 0.5


def threshold(usual: float) -> Parameter:
    doc = f"minimum score, default {usual:g}"
    return Parameter("threshold", float, minimum=0, maximum=1, doc=doc)


THRESHOLD = threshold(USUAL_THRESHOLD)


def least_score(options: Mapping[str, ParameterValue], usual: float = USUAL_THRESHOLD) -> float:
    return float(options.get(THRESHOLD.name, usual))


def least_scores(
    of_labels: npt.NDArray[np.float32], options: Mapping[str, ParameterValue], usual: float = USUAL_THRESHOLD
) -> npt.NDArray[np.float32]:
    """Return the threshold of each label; NaN in `of_labels` is replaced by that of the request."""
    return np.where(np.isnan(of_labels), np.float32(least_score(options, usual)), of_labels)
