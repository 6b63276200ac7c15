"""What a machine with an NVIDIA GPU and no network can tell: are the kernels right there, and how fast is it all?

It need not have all that the server needs.
"""

import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType


def _stand_ins() -> Iterator[str]:
    """Of platformdirs the code that runs here asks one thing, the user's cache directory."""
    if find_spec("platformdirs") is None:
        module, scratch = ModuleType("platformdirs"), tempfile.TemporaryDirectory()
        module.user_cache_path = lambda name: Path(scratch.name) / name  # type: ignore[attr-defined]
        sys.modules["platformdirs"] = module
        yield "platformdirs is not installed: what would be kept is forgotten at the end"


# Before anything else of ours is imported; what is to be said of it.
MISSING = list(_stand_ins())
