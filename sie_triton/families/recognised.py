"""What recognisers of several families say alike."""

from pathlib import Path

from sie_triton.checkpoints.architecture import architecture, is_bare
from sie_triton.checkpoints.files import shortened
from sie_triton.checkpoints.modules import TextFiles


def said_by(directory: Path, files: TextFiles, chain: str) -> str:
    """`chain` with the file that it stands in, and the prompts that there are."""
    saved_as = architecture(files.config) or "a transformer"
    bare = f"config.json: {saved_as} without modules.json, which sentence-transformers takes for"
    prompts = [f"{name} {shortened(prompt)}" for name, prompt in sorted(files.prompts.items()) if prompt]
    named = f"; config_sentence_transformers.json: prompts {', '.join(prompts)}" if prompts else ""
    return f"{bare if is_bare(directory) else 'modules.json:'} {chain}{named}"


def doubtful(files: TextFiles, first: str, second: str) -> str:
    """Why a bare directory of two meanings needs a model file."""
    name = architecture(files.config)
    return (
        f"{files.config.where}: {name} may be meant as {first} or as {second}, and no modules.json says which; "
        "say it in a model file, as profiles.default.adapter_path"
    )
