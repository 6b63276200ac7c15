"""Models that load at start-up: the server counts as ready once none of them is loading."""

from collections.abc import Collection
from pathlib import Path

from sie_triton.contract.names import triton_name
from sie_triton.records.status import LOADING, all_records, process_of


class Preloads:
    """Counts the models to preload that are still loading; 0 for good once none is: later loads are no start-up.

    Use it only after Triton has answered, because the records of its models do not exist before.
    """

    def __init__(self, directory: Path, models: Collection[str]) -> None:
        self._directory = directory
        self._models = set(map(triton_name, models))

    def num_loading(self) -> int:
        if not self._models:
            return 0
        records = [each for name, each in all_records(self._directory)["inference"].items() if name in self._models]
        loading = (record["state"] == LOADING and process_of(record).is_alive for each in records for record in each)
        if not (num := sum(loading)):
            self._models.clear()
        return num
