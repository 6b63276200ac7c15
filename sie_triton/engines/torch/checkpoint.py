"""The safetensors of a checkpoint with several parts, by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open

from sie_triton.checkpoints.files import first_line
from sie_triton.errors import LoadError

M = TypeVar("M", bound=torch.nn.Module)


class Checkpoint:
    """All tensors whose names begin with `prefix`, read at construction; LoadError if that fails.

    Tensors that are taken out are no longer held.
    """

    def __init__(
        self,
        directory: Path,
        dtype: torch.dtype,
        device: str = "cpu",
        prefix: str = "",
        files: str = "*.safetensors",
    ) -> None:
        self.directory, self._device = directory, device
        self._tensors: dict[str, torch.Tensor] = {}
        paths = sorted(directory.glob(files))
        if not paths:
            raise LoadError(
                f"no {files} in {directory}; save the model in this format, or correct weights_path", "not found"
            )
        for path in paths:
            try:
                with safe_open(path, "pt") as weights:
                    names = [name for name in weights.keys() if name.startswith(prefix)]  # noqa: SIM118
                    self._tensors |= {name: weights.get_tensor(name).to(dtype) for name in names}
            except (OSError, RuntimeError, SafetensorError) as exc:
                raise LoadError(f"weights in {directory} cannot be loaded: {first_line(exc)}", "corrupt") from exc

    def num_rows(self, prefix: str, endings: tuple[str, ...]) -> int:
        """Return the rows of the first tensor below `prefix` with one of these endings; LoadError if there is none."""
        for name, tensor in self._tensors.items():
            if name.startswith(prefix) and name.endswith(endings):
                return tensor.shape[0]
        raise LoadError(f"weights in {self.directory} lack {prefix}… {' or '.join(endings)}", "corrupt")

    def below(self, prefix: str) -> Mapping[str, torch.Tensor]:
        """Take out the tensors whose names begin with `prefix`; return them by their names without the prefix."""
        names = [name for name in self._tensors if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._tensors.pop(name) for name in names}

    def fill(self, module: M, prefix: str) -> M:
        """Load the tensors below `prefix` into `module`, on the device, for inference; LoadError unless all match."""
        try:
            module.load_state_dict(self.below(prefix), assign=True)
        except RuntimeError as exc:
            lines = " ".join(line.strip() for line in str(exc).splitlines())
            raise LoadError(f"weights in {self.directory}: {prefix}: {lines[:300]}", "corrupt") from exc
        return module.eval().to(self._device)
