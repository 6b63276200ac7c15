"""The command line."""

import sys

from sie_triton.cli.interrupt import ends_silently

try:
    with ends_silently():
        from sie_triton.cli.main import cli, main
except ModuleNotFoundError as exc:  # installed with the dependencies of the client only
    if (exc.name or "").startswith("sie_triton"):
        raise
    sys.exit(f"error: the command line needs {exc.name}: pip install 'sie-triton[server,embedded]'")

__all__ = ["cli", "main"]
