"""CLAP: audio and texts in a common embedding space (Wu et al., 2023).

sound → mel spectrogram → transformer with shifted windows → projection → unit vector → dense
text → tokens → RoBERTa → pooler → projection → unit vector → dense

The model reads 10 s at a time. A shorter sound is repeated, as the checkpoint's preprocessor_config.json says. Of a
longer sound the library reads random excerpts. Here the embedding of a file is always the same:

- a checkpoint without fusion reads the whole sound, in as few windows of 10 s as cover it, spread evenly; the embedding
  is the mean of theirs;
- a checkpoint with fusion reads the whole sound, shrunk to 10 s, and three crops: the middle of each third.
"""

from pathlib import Path

from sie_triton.checkpoints.towers import model_type
from sie_triton.contract import ENCODE_OUTPUTS
from sie_triton.contract.tensors import INPUT_IDS, MEL, READ
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.clap.files import ClapFiles


class Clap(Family):
    inputs = ("text", "audio")
    outputs = (ENCODE_OUTPUTS["dense"],)
    features = (READ, INPUT_IDS, MEL)

    def recognise(self, directory: Path) -> Recognised | None:
        if model_type(directory) != "clap":
            return None
        files = ClapFiles.read(directory)
        plan = files.plan
        kind = "with fusion" if plan.is_fused else "without fusion"
        reason = f"config.json: clap {kind}, sounds at {plan.rate} Hz in windows of {plan.window // plan.rate} s"
        dims = {"dense": files.dim}
        return Recognised(reason, files.longest_text, dims, normalize=True, weights=(files.directory,))

    def longest(self, directory: Path) -> int:
        return ClapFiles.read(directory).longest_text
