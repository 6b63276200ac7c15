"""Texts that the recognisers of several families share."""

from pathlib import Path

from sie_triton.checkpoints.architecture import architecture, is_bare
from sie_triton.checkpoints.files import shortened
from sie_triton.checkpoints.modules import TextFiles


def reason_with_file(directory: Path, files: TextFiles, chain: str) -> str:
    """Return `chain` after the file that describes it, followed by the prompts, for Recognised.reason."""
    saved_as = architecture(files.config) or "a transformer"
    bare = f"config.json: {saved_as} without modules.json, which sentence-transformers loads as"
    prompts = [f"{name} {shortened(prompt)}" for name, prompt in sorted(files.prompts.items()) if prompt]
    named = f"; config_sentence_transformers.json: prompts {', '.join(prompts)}" if prompts else ""
    return f"{bare if is_bare(directory) else 'modules.json:'} {chain}{named}"


def doubtful(files: TextFiles, first: str, second: str) -> str:
    """Return why a bare directory with two possible meanings needs a model file."""
    name = architecture(files.config)
    return (
        f"{files.config.where}: {name} can be served as {first} or as {second}, and there is no modules.json to "
        "decide; decide in a model file, with profiles.default.adapter_path"
    )
