"""Files of an image and a text encoder with a common embedding space, as transformers saves CLIP and similar models.

sentence-transformers keeps the same files in the directory of its only module.
"""

from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.files import Fields, read_fields
from sie_triton.checkpoints.image_processor import ImagePlan
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.modules import modules_of
from sie_triton.checkpoints.open_clip import CONFIG as OPEN_CLIP
from sie_triton.checkpoints.open_clip import OpenClipFiles, is_open_clip
from sie_triton.checkpoints.positions import UNLIMITED
from sie_triton.checkpoints.transformer_settings import settings_of, tokenizer_arguments
from sie_triton.errors import LoadError


@dataclass(frozen=True, slots=True)
class TowerFiles:
    """Files of two towers. `longest_text` is in tokens. An image becomes `num_patches`."""

    directory: Path
    config: Fields
    dim: int
    longest_text: int
    plan: ImagePlan
    num_patches: int

    @classmethod
    def read(cls, directory: Path) -> "TowerFiles":
        if is_open_clip(directory):
            found = OpenClipFiles.read(directory)
            return cls.of(directory, found.config, found.plan, UNLIMITED)
        home = home_of(directory)
        config = read_fields(home / "config.json")
        return cls.of(home, config, ImagePlan.read(home, "CLIPImageProcessor"), most_tokens(home))

    @classmethod
    def of(cls, home: Path, config: Fields, plan: ImagePlan, most: int) -> "TowerFiles":
        """Check the settings; `most` limits a text's tokens in addition to the model's own limit."""
        text, vision = config.fields("text_config"), config.fields("vision_config")
        check_tower(text)
        check_tower(vision)
        side, patch = vision.integer("image_size", 224, least=1), vision.integer("patch_size", 32, least=1)
        check_shape(home, plan, side)
        return cls(
            home,
            config,
            config.integer("projection_dim", 512, least=1, most=LIMITS.max_width),
            min(most, text.integer("max_position_embeddings", 77, least=2)),
            plan,
            (side // patch) ** 2,
        )


def check_tower(tower: Fields) -> None:
    """Raise LoadError if a tower is larger than any real one."""
    for name, most in (
        ("num_hidden_layers", LIMITS.max_layers),
        ("hidden_size", LIMITS.max_width),
        ("num_attention_heads", LIMITS.max_width),
    ):
        tower.integer(name, 1, least=1, most=most)


def check_shape(home: Path, plan: ImagePlan, side: int) -> None:
    """Raise LoadError if images are not resized to the size that the model reads."""
    if plan.shape != (side, side):
        message = (
            f"{home}: images are resized to {plan.shape[0]} × {plan.shape[1]}, but config.json needs {side} × {side}"
        )
        raise LoadError(message, "unsupported")


def most_tokens(home: Path) -> int:
    """Return the maximum tokens of a text, by the files of the tokenizer and of sentence-transformers.

    Raises LoadError if the latter ask for anything else than embeddings in the common space.
    """
    tokenizer, saved = read_fields(home / "tokenizer_config.json", required=False), settings_of(home)
    for kind in ("text", "image"):
        way, usual = saved.fields("modality_config").fields(kind), (f"get_{kind}_features", "pooler_output")
        found = way.text("method", usual[0]), way.text("method_output_name", usual[1])
        if found != usual:
            raise way.unserved(f"{' → '.join(found)} cannot be served; supported is {' → '.join(usual)}")
    calls = saved.fields("processing_kwargs")
    for kind in calls.values:
        about_length = {"padding", "truncation", "max_length", "return_tensors"}
        if own := sorted(set(calls.fields(kind).values) - about_length):
            raise calls.unserved(f"{kind}: {', '.join(own)} cannot be served; set it in the processor's own files")
    arguments = Fields(saved.where, tokenizer_arguments(saved))
    # Tokenizers without a limit save 10^30.
    longest = tokenizer.integer("model_max_length", UNLIMITED, least=1, most=None)
    longest = arguments.integer(
        "model_max_length", saved.integer("max_seq_length", longest, least=1), least=1, most=None
    )
    return min(longest, calls.fields("text").integer("max_length", UNLIMITED, least=1))


def home_of(directory: Path) -> Path:
    """Return the directory of config.json; raise LoadError if sentence-transformers has layers after the towers."""
    kinds = [(kind, path) for kind, path in modules_of(directory) if kind != "Normalize"]
    if len(kinds) != 1 or kinds[0][0] not in ("CLIPModel", "Transformer"):
        chain = " → ".join(kind for kind, _ in kinds)
        message = f"modules.json in {directory}: {chain} cannot be served; two towers must be a single Transformer"
        raise LoadError(message, "unsupported")
    return kinds[0][1]


def model_type(directory: Path) -> str:
    """Return the model type of the first module, or transformers' name for it; empty if the files do not say.

    Raises LoadError for a model of open_clip that cannot be served.
    """
    if is_open_clip(directory):
        return OpenClipFiles.read(directory).kind
    try:
        found = [read_fields(path / "config.json", required=False) for _, path in modules_of(directory)[:1]]
        return found[0].text("model_type", "") if found else ""
    except LoadError:
        return ""


def model_type_file(directory: Path) -> str:
    """Return the name of the file that gives the model type."""
    return OPEN_CLIP if is_open_clip(directory) else "config.json"
