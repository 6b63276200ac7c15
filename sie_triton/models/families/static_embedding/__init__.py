"""Static embeddings: a text's vector is the mean of its tokens' rows in a table (StaticEmbedding, model2vec's Potion).

text → tokens → rows of the table → mean → dense

No transformer runs, so a text costs microseconds on a CPU.
"""

from pathlib import Path
from typing import ClassVar

from sie_triton.contract import ENCODE_OUTPUTS
from sie_triton.contract.tensors import INPUT_IDS
from sie_triton.errors import LoadError
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.static_embedding.files import MODULE, MODULES, WEIGHTS, StaticFiles, is_static, table_of
from sie_triton.models.inputs.prompt import own_prompt


class StaticEmbedding(Family):
    outputs = (ENCODE_OUTPUTS["dense"],)
    features = (INPUT_IDS,)
    engines: ClassVar = {"sie_triton.engines:Engine": ".adapter"}
    recognises_quickly = False

    def keeps_tokenizer(self, directory: Path) -> bool:
        return True

    def recognise(self, directory: Path) -> Recognised | None:
        """Recognise a static model. Only its weights tell the size of a vector, so they must be there."""
        if not is_static(directory):
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
