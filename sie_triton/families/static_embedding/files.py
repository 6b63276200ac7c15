"""Files of StaticEmbedding modules and of model2vec. No torch."""

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from sie_triton.checkpoints.contents import CONFIG
from sie_triton.checkpoints.files import first_line, has_file, read_fields
from sie_triton.checkpoints.modules import modules_of, only
from sie_triton.errors import LoadError
from sie_triton.spec import ANY_LENGTH

MODULE, NORMALIZE = "StaticEmbedding", "Normalize"
MODEL2VEC = "model2vec"
WEIGHTS = "model.safetensors"

# Names of the table, float [rows, dim]: of sentence-transformers and of model2vec.
TABLES = ("embedding.weight", "embeddings")

# Tensors beside the table in model2vec's files of quantized vocabularies.
OF_QUANTIZED = ("mapping", "weights")


@dataclass(frozen=True, slots=True)
class StaticFiles:
    """Files of a static model. `directory` has the weights and tokenizer.json; `table` names the weights.

    `longest` is the number of tokens at which tokenizer.json truncates a text.
    """

    directory: Path
    reason: str
    table: str
    num_rows: int
    dim: int
    normalize: bool
    longest: int

    @classmethod
    def read(cls, directory: Path) -> "StaticFiles":
        """Read the files; raise LoadError naming the one that cannot be used."""
        if has_file(directory / "modules.json"):
            kinds = modules_of(directory)
            others = [kind for kind, _ in kinds if kind not in (MODULE, NORMALIZE)]
            if others:
                message = f"{directory}: {', '.join(others)} after {MODULE} cannot be served"
                raise LoadError(message, "unsupported")
            home, reason = only(kinds, (MODULE,), directory), f"modules.json: {MODULE}"
            normalize = NORMALIZE in [kind for kind, _ in kinds]
        else:
            home, reason = directory, f"{CONFIG}: {MODEL2VEC}"
            normalize = read_fields(directory / CONFIG).flag("normalize", False)
        return cls(home, reason, *_table(home / WEIGHTS), normalize, _longest(home))


def is_static(directory: Path) -> bool:
    if has_file(directory / "modules.json"):
        return MODULE in [kind for kind, _ in modules_of(directory)]
    return read_fields(directory / CONFIG, required=False).text("model_type", "") == MODEL2VEC


def _longest(directory: Path) -> int:
    tokenizer = read_fields(directory / "tokenizer.json")
    return (
        tokenizer.fields("truncation").integer("max_length", ANY_LENGTH, least=1)
        if tokenizer.values.get("truncation")
        else ANY_LENGTH
    )


def _table(path: Path) -> tuple[str, int, int]:
    """Return name and shape of the table."""
    try:
        with safe_open(path, "numpy") as file:
            known = set(file.keys())
            names = [name for name in TABLES if name in known]
            shape = list(file.get_slice(names[0]).get_shape()) if names else []
    except (OSError, SafetensorError) as exc:
        raise LoadError(f"{path}: cannot be read: {first_line(exc)}", "corrupt") from exc
    if unread := known.intersection(OF_QUANTIZED):
        message = f"{path}: {', '.join(sorted(unread))}: quantized vocabularies cannot be served"
        raise LoadError(f"{message}; save the model without vocabulary quantization", "unsupported")
    if len(shape) != 2:
        raise LoadError(f"{path}: must have one of {', '.join(TABLES)}, [tokens, dim]", "corrupt")
    return names[0], shape[0], shape[1]
