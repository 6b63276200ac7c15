"""Reference values from open_clip for checkpoints, and for the image files and token ids beside them.

`python -m tests.support.by_open_clip SIZES DIRECTORY...` writes vectors.npz into each. SIZES is JSON with timm's sizes.
"""

import json
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

# The registries' torchvision looks here for kernels that come with its build for CUDA alone; none of them is called.
sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")


def main(directory: Path) -> None:
    import open_clip
    from PIL import Image

    model, preprocess = open_clip.create_model_from_pretrained(f"local-dir:{directory}")
    model.eval()
    files = [Image.open(file) for file in sorted(directory.glob("image-*"))]
    ids = torch.from_numpy(np.load(directory / "ids.npy"))
    with torch.inference_mode():
        images = model.encode_image(torch.stack([preprocess(each) for each in files]), normalize=True)
        texts = model.encode_text(ids, normalize=True)
    np.savez(directory / "vectors.npz", images=images, texts=texts)


if __name__ == "__main__":
    import timm

    timm.create_model = partial(timm.create_model, **json.loads(sys.argv[1]))
    for each in sys.argv[2:]:
        main(Path(each))
