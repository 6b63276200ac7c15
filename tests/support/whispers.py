"""Small Whisper models with fixed-seed weights, as transformers saves them."""

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.readers import VOCABULARY, loosen, save_reader_tokenizer

RATE, WINDOW_S = 16_000, 2
LANGUAGES = ("en", "de", "fr", "zh")
# In the order of OpenAI's tokenizers: the end, then languages, tasks, marks, and times by 0.02 s.
START = ["<|endoftext|>", "<|startoftranscript|>"]
MARKS = ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
TIMES = [f"<|{place / 50:.2f}|>" for place in range(50 * WINDOW_S + 1)]
TOKENS = [*START, *(f"<|{code}|>" for code in LANGUAGES), *MARKS, *TIMES]
IDS = {token: VOCABULARY + i for i, token in enumerate(TOKENS)}

# Words that no answer has, and that no answer begins with.
SUPPRESSED, NEVER_FIRST = [*range(2000, 2030)], [*range(2030, 2040)]


def save_whisper(directory: Path, tokenizer: Path, **generation: Any) -> transformers.WhisperForConditionalGeneration:
    """Save a Whisper for windows of 2 s, answers of up to 60 tokens; times are as likely as words.

    `generation` are entries of generation_config.json; None removes one.
    """
    end, start = (IDS[token] for token in START)
    special = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}
    names = {"bos_token": START[0], "eos_token": START[0], "unk_token": START[0], "pad_token": START[0]}
    fast = save_reader_tokenizer(directory, tokenizer, TOKENS, **names)
    torch.manual_seed(5)
    sizes = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}
    config = transformers.WhisperConfig(
        vocab_size=len(fast),
        d_model=32,
        **{f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in sizes.items()},
        max_source_positions=50 * WINDOW_S,
        max_target_positions=60,
        tie_word_embeddings=False,
        **special,
    )
    model = transformers.WhisperForConditionalGeneration(config).eval()
    loosen(model)
    given = {
        **special,
        "max_length": 60,
        "is_multilingual": True,
        "lang_to_id": {f"<|{code}|>": IDS[f"<|{code}|>"] for code in LANGUAGES},
        "task_to_id": {"transcribe": IDS["<|transcribe|>"], "translate": IDS["<|translate|>"]},
        "no_timestamps_token_id": IDS["<|notimestamps|>"],
        "max_initial_timestamp_index": 25,
        "suppress_tokens": [*SUPPRESSED, *(IDS[token] for token in TOKENS[1 : -len(TIMES)])],
        "begin_suppress_tokens": [*NEVER_FIRST, end],
        **generation,
    }
    model.generation_config = transformers.GenerationConfig.from_dict(
        {name: value for name, value in given.items() if value is not None}
    )
    model.save_pretrained(directory)
    transformers.WhisperFeatureExtractor(chunk_length=WINDOW_S).save_pretrained(directory)
    return model
