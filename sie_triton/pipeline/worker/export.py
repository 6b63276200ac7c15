"""`python -m sie_triton.pipeline.worker.export DIRECTORY`: write the graphs of a model's encoders to DIRECTORY.

Started only by `graphs.py`. DIRECTORY/order.json names the model. The weights are loaded again, because the worker's
own are laid out for PyTorch's kernels. The process uses one thread, at idle priority.
"""

import json
import os
import sys
from pathlib import Path

import torch

from sie_triton.contract.spec import ModelSpec
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch.encoder import TorchEncoder
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.export import export
from sie_triton.models.families import fitted, load_adapter
from sie_triton.pipeline.worker.graphs import ORDER, path_of


class Exporting(TorchEngine):
    """An engine that leaves encoders as they are loaded, and writes their graphs."""

    def __init__(self, spec: ModelSpec, output: Path) -> None:
        super().__init__(spec, "cpu", Measurements())
        self._output = output

    def settle(self, encoder: TorchEncoder, part: str = "", max_length: int | None = None, hides: int = 0) -> None:
        if encoder.is_exportable:
            path = path_of(self._output, part)
            path.parent.mkdir()
            export(encoder, path)


def main(output: Path) -> None:
    os.nice(19)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    torch.set_num_threads(1)
    order = json.loads((output / ORDER).read_text())
    directory = Path(order["directory"])
    spec = fitted(ModelSpec.from_json(order["spec"]), directory)
    load_adapter(spec, directory, Exporting(spec, output))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
