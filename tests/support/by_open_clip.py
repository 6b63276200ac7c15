"""Checkpoints of open_clip with fixed-seed weights, and its vectors of the image files and token ids beside them.

`python -m tests.support.by_open_clip SIZES DIRECTORY...` writes open_clip_model.safetensors and vectors.npz into each
directory, beside its open_clip_config.json. SIZES is JSON with timm's sizes.
"""

import json
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from safetensors.torch import save_file

# The registries' torchvision looks here for kernels that come with its build for CUDA alone; none of them is called.
sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")


def save(directory: Path) -> None:
    import open_clip

    torch.manual_seed(5)
    model = open_clip.create_model(f"local-dir:{directory}", load_weights=False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:  # so large that items are far from each other
                parameter.normal_(std=0.3 if "embed" in name else 2 * parameter[0].numel() ** -0.5)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, directory / "open_clip_model.safetensors")


def main(directory: Path) -> None:
    import open_clip
    from PIL import Image

    save(directory)
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
