"""The command line."""

import os
import sys

from sie_triton.system.processes.signals import ends_silently

# A user without a name and a home directory, as in some containers: what a container runtime sets.
if os.path.expanduser("~") == "~":
    os.environ["HOME"] = "/"

try:
    with ends_silently():
        from sie_triton.cli.main import cli, main
except ModuleNotFoundError as exc:  # installed with the dependencies of the client only
    if (exc.name or "").startswith("sie_triton"):
        raise
    sys.exit(f"error: the command line needs {exc.name}: pip install 'sie-triton[server,embedded]'")

__all__ = ["cli", "main"]
