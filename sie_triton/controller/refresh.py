"""Update the repository to the model files, in a child process.

The child imports the catalog and the families, which the controller does not.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sie_triton.errors import ServerError
from sie_triton.records.change import ChangeOutcome, ChangeRefused
from sie_triton.settings.sources import FILE_VARIABLE, PREFIX

# The child gives way to the processes that answer requests.
PROGRAM = "import os; os.nice(10); from sie_triton.pipeline.render.refresh import main; main()"


def refresh(
    data_dir: Path,
    *,
    add: bytes | None = None,
    remove: str = "",
    mention: Sequence[str] = (),
    forget: Sequence[str] = (),
    timeout_s: float = 120.0,  # the child may query the model hub
) -> ChangeOutcome:
    """Update the repository, which takes a second or two. Raise ChangeRefused if the change cannot be made."""
    change = ["--add"] if add is not None else [f"--remove={remove}"] if remove else []
    change += [f"--mention={name}" for name in mention] + [f"--forget={name}" for name in forget]
    command = [sys.executable, "-P", "-c", PROGRAM, str(data_dir), *change]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    # serving.json has all settings; ignore any sie.yaml.
    environment[FILE_VARIABLE] = os.devnull
    try:
        done = subprocess.run(
            command, input=add or b"", stdout=subprocess.PIPE, env=environment, timeout=timeout_s, check=True
        )
        raw: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired as exc:
        raise ServerError(f"reading the model files took longer than {timeout_s:g} s") from exc
    except (subprocess.CalledProcessError, ValueError) as exc:
        said = exc.stdout.decode(errors="replace") if isinstance(exc, subprocess.CalledProcessError) else ""
        raise ServerError(said or "the model files could not be read; the controller's log has the details") from exc
    outcome = ChangeOutcome(**raw)
    if outcome.refused:
        raise ChangeRefused(outcome.refused, outcome.reason)
    return outcome
