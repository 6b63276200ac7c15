"""Limits and times of downloads, of the cluster cache, of conversions and of the disk that holds weights."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WeightLimits:
    max_manifest_bytes: int = 4 << 20
    max_manifest_files: int = 10_000
    max_file_bytes: int = 1 << 40
    max_ref_bytes: int = 100
    max_listed_models: int = 10_000
    read_bytes: int = 1 << 20  # of a file that is uploaded, at a time

    piece_bytes: int = 8 << 20  # of one request, which has a timeout of its own: a slow connection makes progress
    request_timeout_s: int = 60
    connect_timeout_s: int = 5
    retry_s: int = 10

    progress_s: float = 0.5  # between two reports
    max_retries: int = 3  # attempts in a row that transfer nothing
    retry_pause_s: float = 1.0
    spare_disk_bytes: int = 1_000_000_000  # that a fetch leaves free
    max_unsized_bytes: int = 100_000_000  # of a file whose size the hub does not report: texts, compressed in transit
    max_hub_questions: int = 16  # repositories asked about: a start with hundreds of models must not take minutes

    poll_s: float = 0.2
    recent_s: float = 60.0  # what was used so lately may be about to be loaded, and stays on the disk
    conversion_grace_s: float = 10.0
    spare_memory_bytes: int = 512_000_000  # of a conversion, besides the tensors

    def conversion_s(self, num_bytes: int) -> int:
        """Return how many seconds the conversion of that many bytes may take: far more than a slow disk needs."""
        return 120 + num_bytes // 10_000_000


LIMITS = WeightLimits()

# Status of the process that converts pickles if it refuses one.
REFUSED = 3
