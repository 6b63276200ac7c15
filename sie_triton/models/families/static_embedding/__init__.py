"""Static embeddings: a text's vector is the mean of its tokens' rows in a table (StaticEmbedding, model2vec's Potion).

text → tokens → rows of the table → mean → dense

No transformer runs, so a text costs microseconds on a CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import tokenizers

from sie_triton.checkpoints.files import first_line, has_file, read_fields
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.modules import (
    check_one_way,
    check_saved_as,
    default_prompt,
    modules_of,
    normalizes,
    only,
    prompts_of,
    saved_settings,
)
from sie_triton.checkpoints.special_tokens import MAX_BYTES
from sie_triton.contract import ENCODE_OUTPUTS, Features, Part
from sie_triton.contract.spec import ANY_LENGTH, ModelSpec
from sie_triton.contract.tensors import INPUT_IDS
from sie_triton.errors import LoadError
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.inputs import Frame, Processor
from sie_triton.models.inputs.cutting import kept
from sie_triton.models.inputs.prompt import own_prompt, prompt_of
from sie_triton.models.inputs.tokenizer import open_tokenizer, packed_encodings, packed_ids, truncating

MODULE, NORMALIZE = "StaticEmbedding", "Normalize"
MODULES, WEIGHTS = "modules.json", "model.safetensors"

# Names of the table, float [tokens, dim]: as the library saves it, and as model2vec does.
MODEL2VECS = "embeddings"
TABLES = ("embedding.weight", MODEL2VECS)

# Tensors that may stand beside model2vec's table: the row, and the factor, of each token.
ROWS, FACTORS = "mapping", "weights"


@dataclass(frozen=True, slots=True)
class StaticFiles:
    """Small files of a static model."""

    directory: Path  # of the weights and tokenizer.json
    normalize: bool  # before a vector is cut
    most: int  # entries of a vector
    longest: int  # number of tokens at which tokenizer.json truncates a text
    prompts: dict[str, str]
    default_prompt: str

    @classmethod
    def read(cls, directory: Path) -> "StaticFiles":
        kinds = modules_of(directory)
        check_one_way(kinds, directory)
        names = [kind for kind, _ in kinds]
        if names not in ([MODULE], [MODULE, NORMALIZE]):
            chain = " → ".join(names)
            message = f"modules.json in {directory}: {chain} cannot be served; supported is {MODULE} → {NORMALIZE}"
            raise LoadError(message, "unsupported")
        check_saved_as(directory, ("SentenceTransformer",))
        home = only(kinds, (MODULE,), directory)
        truncation = read_fields(home / "tokenizer.json", most=MAX_BYTES).fields("truncation")
        saved = saved_settings(directory)
        prompts = prompts_of(saved)
        return cls(
            home,
            NORMALIZE in names and normalizes(kinds[-1][1]),
            saved.integer("truncate_dim", LIMITS.max_width, least=1),
            truncation.integer("max_length", least=1) if truncation.values else ANY_LENGTH,
            prompts,
            default_prompt(saved, prompts),
        )


def table_of(directory: Path) -> tuple[str, int, int]:
    """Return the table's name, number of tokens and dim; LoadError if the weights are missing or something else."""
    from safetensors import SafetensorError, safe_open

    path = directory / WEIGHTS
    try:
        with safe_open(path, "numpy") as file:
            known = set(file.keys())
            names = [name for name in TABLES if name in known]
            shape = list(file.get_slice(names[0]).get_shape()) if names else []
            if names[:1] == [MODEL2VECS] and ROWS in known:
                shape[:1] = file.get_slice(ROWS).get_shape()
    except (OSError, SafetensorError) as exc:
        raise LoadError(f"{path}: cannot be read: {first_line(exc)}", "corrupt") from exc
    if len(shape) != 2:
        raise LoadError(f"{path}: must have one of {', '.join(TABLES)}, [tokens, dim]", "corrupt")
    return names[0], shape[0], shape[1]


class StaticEmbedding(Family):
    outputs = (ENCODE_OUTPUTS["dense"],)
    features = (INPUT_IDS,)
    engines: ClassVar = {"sie_triton.engines:Engine": ".adapter"}
    recognises_quickly = False

    def keeps_tokenizer(self, directory: Path) -> bool:
        return True

    def recognise(self, directory: Path) -> Recognised | None:
        """Recognise a static model. Only its weights tell the size of a vector, so they must be there."""
        if not has_file(directory / MODULES) or MODULE not in [kind for kind, _ in modules_of(directory)]:
            return None
        files = StaticFiles.read(directory)
        if not (files.directory / WEIGHTS).exists():
            problem = "the size of a vector is known from the weights only, which are not downloaded yet"
            raise LoadError(f"{directory}: {problem}; write a model file with tasks.encode.dense.dim", "unsupported")
        _, num_rows, dim = table_of(files.directory)
        reason = f"{MODULES}: {MODULE}, a table of {num_rows} × {dim}, without a transformer"
        return Recognised(
            reason,
            files.longest,
            {"dense": min(dim, files.most)},
            normalize=files.normalize and dim <= files.most,
            query_prompt=own_prompt(files.prompts, True),
            weights=(files.directory,),
        )

    def longest(self, directory: Path) -> int:
        return StaticFiles.read(directory).longest


class StaticProcessor(Processor):
    """Tokenizer of a static model, with its prompts."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, files: StaticFiles, longest: int) -> None:
        self._tokenizer, self._files, self._longest = tokenizer, files, longest

    def frame(self, part: Part) -> Frame:
        return prompt_of(self._files.prompts, self._files.default_prompt, part)

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        read = [kept(self._tokenizer, text, self._longest) for text in framed]
        encodings = self._tokenizer.encode_batch_fast(read, add_special_tokens=False)
        # A text without tokens has token 0, which stands for the zero vector.
        ids = [[token + 1 for token in each.ids] or (0,) for each in encodings]
        return {**packed_encodings(encodings), **packed_ids(ids)}


def load_processor(spec: ModelSpec, directory: Path) -> StaticProcessor:
    files = StaticFiles.read(directory)
    longest = min(spec.max_sequence_length, files.longest)
    tokenizer = truncating(open_tokenizer(files.directory), longest)
    # The library reads tokenizer.json only, which has no such setting.
    tokenizer.encode_special_tokens = False
    return StaticProcessor(tokenizer, files, longest)
