"""Reader of the files of a causal cross-encoder that sentence-transformers saved.

Standard library only: render and preprocess read these without torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.architecture import architecture
from sie_triton.checkpoints.cross_encoder import activation_of
from sie_triton.checkpoints.files import Fields, shortened
from sie_triton.checkpoints.library_keys import OF_TEMPLATES, check_keys
from sie_triton.checkpoints.modules import (
    CROSS_ENCODER,
    TextFiles,
    check_saved_as,
    module_keys,
    modules_of,
    saved_settings,
)
from sie_triton.checkpoints.transformer_settings import GENERATION, settings_of
from sie_triton.errors import LoadError

LOGIT_SCORE = "LogitScore"


@dataclass(frozen=True, slots=True)
class CausalFiles:
    """Files of a causal cross-encoder."""

    text: TextFiles
    tokens: tuple[int, ...]  # the score is the logit of the first, less that of the second if there is one
    activation: str  # of that score: dotted name of a torch.nn class
    is_structured: bool  # messages have lists of parts
    arguments: Mapping[str, bool]  # of the chat template

    @classmethod
    def read(cls, directory: Path) -> "CausalFiles":
        """Read the files; raise LoadError naming the file or module that cannot be used."""
        kinds = modules_of(directory)
        chain = [kind for kind, _ in kinds]
        if chain != ["Transformer", LOGIT_SCORE]:
            message = f"modules.json in {directory}: {' → '.join(chain)} cannot be served"
            raise LoadError(f"{message}; supported is Transformer → {LOGIT_SCORE}", "unsupported")
        check_saved_as(directory, (CROSS_ENCODER,))
        text = TextFiles.read(directory)
        settings = settings_of(text.transformer)
        if text.task != GENERATION:
            message = f"transformer_task: {shortened(text.task)} cannot be served"
            raise settings.unserved(f"{message}; this family needs {GENERATION}")
        arguments = check_keys(settings.fields("processing_kwargs").fields("chat_template"), OF_TEMPLATES)
        changed = [name for name in ("add_generation_prompt", "enable_thinking") if arguments.has(name)]
        size = text.config.integer("vocab_size", least=1)
        score = module_keys(LOGIT_SCORE, kinds[1][1])
        tokens = [score.integer(key, most=size - 1) for key in ("true_token_id", "false_token_id") if score.has(key)]
        if not score.has("true_token_id"):
            raise score.corrupt("true_token_id is missing")
        return cls(
            text=text,
            tokens=tuple(tokens),
            activation=activation_of(saved_settings(directory), text.config),
            is_structured=_message_format(settings) == "structured",
            arguments={"add_generation_prompt": False} | {name: arguments.flag(name, False) for name in changed},
        )

    @property
    def reason(self) -> str:
        """The file that makes the directory a causal cross-encoder, and the setting in it."""
        name = architecture(self.text.config) or "a language model"
        tokens = " and ".join(map(str, self.tokens))
        return f"modules.json: {name}, {LOGIT_SCORE} of {tokens}, {self.activation.rpartition('.')[2]}"


def is_causal_cross_encoder(directory: Path) -> bool:
    return LOGIT_SCORE in [kind for kind, _ in modules_of(directory)]


def _message_format(settings: Fields) -> str:
    """Return how messages hold their texts; raise LoadError if the library does not write pairs as messages."""
    ways = settings.fields("modality_config")
    if not ways.has("message"):
        message = "without message, the library reads query and text without the chat template"
        raise ways.unserved(f"{message}, which this family does not support")
    way = ways.fields("message")
    method, output = way.text("method", "forward"), way.text("method_output_name", "logits")
    if (method, output) != ("forward", "logits"):
        raise way.unserved(f"{shortened(method)} → {shortened(output)} cannot be served; supported is forward → logits")
    return way.one_of("format", ("flat", "structured"))
