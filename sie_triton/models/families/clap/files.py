"""CLAP as transformers saves it: an audio and a text encoder with a common embedding space."""

from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.files import MOST, Fields, read_fields, shortened
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.mel import MelPlan
from sie_triton.checkpoints.towers import home_of
from sie_triton.errors import LoadError

MAX_SIDE = 8192


@dataclass(frozen=True, slots=True)
class ClapFiles:
    """Files of a CLAP model.

    `longest_text` is in tokens. A window of audio costs as much as `window_tokens` tokens of text.
    """

    directory: Path
    dim: int
    longest_text: int
    plan: MelPlan
    window_tokens: int

    @classmethod
    def read(cls, directory: Path) -> "ClapFiles":
        home = home_of(directory)
        config = read_fields(home / "config.json")
        text, audio = config.fields("text_config"), config.fields("audio_config")
        for name, usual, most in (
            ("num_hidden_layers", 12, LIMITS.max_layers),
            ("hidden_size", 768, LIMITS.max_width),
            ("num_attention_heads", 12, LIMITS.max_width),
        ):
            text.integer(name, usual, least=1, most=most)
        plan = MelPlan.read(home)
        _check(plan, audio)
        # Position ids begin after that of padding, as in RoBERTa.
        reserved = text.integer("pad_token_id", 1, most=LIMITS.max_width) + 1
        longest = text.integer("max_position_embeddings", 514, least=reserved + 2) - reserved
        dim = config.integer("projection_dim", 512, least=1, most=LIMITS.max_width)
        return cls(home, dim, longest, plan, _window_tokens(text, audio))


def _check(plan: MelPlan, audio: Fields) -> None:
    """Raise LoadError if the spectrograms are not those that the model reads."""
    bands = audio.integer("num_mel_bins", 64, least=1, most=MAX_SIDE)
    side = audio.integer("spec_size", 256, least=bands, most=MAX_SIDE)
    if plan.num_bands != bands:
        wrong = f"feature_size {plan.num_bands}, and num_mel_bins {bands}"
    elif plan.num_frames > side * (side // bands):
        wrong = f"{plan.num_frames} frames, and spec_size {side}, which has room for {side * (side // bands)}"
    elif plan.is_fused != audio.flag("enable_fusion", False):
        wrong = f"truncation {'fusion' if plan.is_fused else 'rand_trunc'}, and enable_fusion {not plan.is_fused}"
    else:
        return
    message = f"the feature extractor has {wrong.replace(', and', f', and {audio.where} has')}"
    raise LoadError(message, "unsupported")


def _window_tokens(text: Fields, audio: Fields) -> int:
    """Return the number of text tokens whose matrix products cost as much as those of one window.

    Each stage reads a quarter of the patches of the stage before it, at twice the width, so all blocks cost the same.
    """
    depths, stride = audio.values.get("depths", [2, 2, 6, 2]), audio.values.get("patch_stride", 4)
    if not isinstance(depths, list) or not depths or any(each not in range(1, LIMITS.max_layers) for each in depths):
        raise LoadError(
            f"{audio.where}: depths: must be a list of whole numbers (given {shortened(depths)})", "corrupt"
        )
    stride = stride[0] if isinstance(stride, list) and stride else stride
    if stride not in range(1, MAX_SIDE):
        raise LoadError(f"{audio.where}: patch_stride: must be a whole number (given {shortened(stride)})", "corrupt")
    patches: int = (audio.integer("spec_size", 256) // stride) ** 2
    of_window = (
        patches * sum(depths) * audio.integer("patch_embeds_hidden_size", 96, least=1, most=LIMITS.max_width) ** 2
    )
    of_token = text.integer("num_hidden_layers", 12) * text.integer("hidden_size", 768) ** 2
    return min(max(1, round(of_window / of_token)), MOST)
