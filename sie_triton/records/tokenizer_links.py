"""Links in the directory of status records, by which doors find the tokenizers that preprocess has loaded.

pipeline/stages/preprocess.py → tokenizers/MODEL.HASH → doors/tokenizing.py
"""

import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from sie_triton.contract.names import triton_name
from sie_triton.contract.spec import ModelSpec, Runtime


def publish_tokenizer(status_dir: Path, spec: ModelSpec, directory: Path) -> None:
    """Let doors find the directory of a model's tokenizer files."""
    link = _link(status_dir, spec)
    link.parent.mkdir(exist_ok=True)
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(directory)
    fresh.replace(link)


def published_tokenizer(status_dir: Path, spec: ModelSpec) -> Path | None:
    """Return the directory of a model's tokenizer files; None if preprocess has not loaded it."""
    link = _link(status_dir, spec)
    return Path(os.readlink(link)) if link.is_symlink() else None


def _link(status_dir: Path, spec: ModelSpec) -> Path:
    """Return the link of a model as its file describes it; after a change of the file there is another one."""
    described = replace(spec, runtime=Runtime()).to_json()
    return status_dir / "tokenizers" / f"{triton_name(spec.model)}.{sha256(described.encode()).hexdigest()[:16]}"
