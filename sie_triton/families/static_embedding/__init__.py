"""Static embeddings: a text's vector is the mean of its tokens' rows in a table (model2vec, StaticEmbedding).

text → tokens → rows of the table → mean → dense

No transformer runs, so a text costs microseconds on a CPU.
"""

from pathlib import Path
from typing import ClassVar

from sie_triton.contract import ENCODE_OUTPUTS
from sie_triton.contract.tensors import INPUT_IDS
from sie_triton.families.base import Family, Recognised
from sie_triton.families.static_embedding.files import StaticFiles, is_static


class StaticEmbedding(Family):
    outputs = (ENCODE_OUTPUTS["dense"],)
    features = (INPUT_IDS,)
    engines: ClassVar = {"sie_triton.engines:Engine": ".adapter"}

    def recognise(self, directory: Path) -> Recognised | None:
        if not is_static(directory):
            return None
        files = StaticFiles.read(directory)
        reason = f"{files.reason}: a table of {files.num_rows} × {files.dim}, without a transformer"
        dims = {"dense": files.dim}
        return Recognised(reason, files.longest, dims, normalize=files.normalize, weights=(files.directory,))

    def longest(self, directory: Path) -> int:
        return StaticFiles.read(directory).longest
