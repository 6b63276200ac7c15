"""Limits of the files of a checkpoint: larger than any real model needs, small enough to be read quickly."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Larger values are refused by name."""

    max_json_bytes: int = 16 << 20  # parsed JSON takes up to 24 times as much memory
    max_header_bytes: int = 8_000_000  # of safetensors: the largest have 2 MB; 73 MB took 25 s and 850 MB to read
    max_chat_template_bytes: int = 256 * 1024
    max_path_bytes: int = 255
    max_message_characters: int = 300  # of an error that is shown
    max_number: float = 1e9  # in settings of models

    max_layers: int = 1000  # building more takes minutes before a single weight is read
    max_width: int = 1_000_000
    max_modules: int = 20
    max_route_characters: int = 100
    max_prompt_characters: int = 20_000  # those of known models have hundreds
    max_classes: int = 100_000  # of a config.json that gives a number instead of names
    max_image_side: int = 8192
    max_sampling_rate_hz: int = 384_000
    max_lora_patterns: int = 1000
    max_lora_repetitions: int = 2  # in a pattern, so that matching ends soon
    max_special_tokens: int = 10_000  # that a file adds
    max_special_token_characters: int = 1000

    max_steps: int = 200  # of a tokenizer
    max_step_depth: int = 8
    max_pattern_characters: int = 20_000
    # Characters that normalizers may make of one, in theory: ALBERT's are NFKD, lowercase and a character map,
    # 18 × 2 × 18. What they make of a text is bounded again when it is read (`models/inputs/growth.py`).
    max_growth: int = 700
    max_split_growth: int = 16  # the same for pre-tokenizers; those of known models make four of one
    # The largest tokenizers have a million tokens of eight characters, and six thousand added ones.
    max_tokens: int = 4_000_000
    max_token_characters: int = 16_000_000  # of all tokens
    max_added_tokens: int = 100_000
    max_added_characters: int = 1_000_000
    max_around_tokens: int = 100  # around a text; models have 2
    max_word_characters: int = 1000  # WordPiece takes quadratic time for them; models have 100


LIMITS = FileLimits()
