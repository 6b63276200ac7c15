"""What recognisers of several families say alike."""

from collections.abc import Mapping
from pathlib import Path

from sie_triton.checkpoints.architecture import architecture, is_bare
from sie_triton.checkpoints.modules import TextFiles
from sie_triton.inputs.prompt import own_prompt


def said_by(directory: Path, files: TextFiles, chain: str) -> str:
    """`chain` with the file that it stands in, and the prompts that there are."""
    saved_as = architecture(files.config) or "a transformer"
    bare = f"config.json: {saved_as} without modules.json, which sentence-transformers takes for"
    prompts = sorted(name for name, prompt in files.prompts.items() if prompt)
    named = f"; config_sentence_transformers.json: prompts {', '.join(prompts)}" if prompts else ""
    return f"{bare if is_bare(directory) else 'modules.json:'} {chain}{named}"


def prompts_of(files: TextFiles) -> Mapping[str, str]:
    """By role."""
    roles = {"query": True, "document": False}
    return {"": files.default_prompt, **{role: own_prompt(files.prompts, is_query) for role, is_query in roles.items()}}


def doubtful(files: TextFiles, first: str, second: str) -> str:
    """Why a bare directory of two meanings needs a model file."""
    name = architecture(files.config)
    return (
        f"{files.config.where}: {name} may be meant as {first} or as {second}, and no modules.json says which; "
        "say it in a model file, as profiles.default.adapter_path"
    )
