"""Reader of the files of a cross-encoder, saved by sentence-transformers' CrossEncoder or by transformers."""

from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.architecture import CLASSIFIER, architecture, head
from sie_triton.checkpoints.classifier import model_inputs
from sie_triton.checkpoints.files import Fields, read_fields
from sie_triton.checkpoints.modules import CROSS_ENCODER, TextFiles, check_task, modules_of, saved_as, saved_settings
from sie_triton.checkpoints.transformer_settings import CLASSIFICATION
from sie_triton.errors import LoadError


@dataclass(frozen=True, slots=True)
class CrossEncoderFiles:
    """Files of a cross-encoder. `activation` is the dotted name of a torch.nn class that makes a score of the logit."""

    text: TextFiles
    activation: str

    @classmethod
    def read(cls, directory: Path) -> "CrossEncoderFiles":
        text = TextFiles.read(directory)
        if saved_as(directory) == CROSS_ENCODER:
            check_task(text, CLASSIFICATION)
        num_labels = len(text.config.fields("id2label").values) or text.config.integer("num_labels", 2)
        if num_labels != 1:
            message = f"the classifier has {num_labels} labels"
            raise text.config.unserved(f"{message}, but a score needs one; serve it as a sequence_classification")
        model_inputs(text.transformer)
        return cls(text, activation_of(saved_settings(directory), text.config))

    @property
    def chain(self) -> str:
        """The layers that make the scores, in words."""
        name = architecture(self.text.config) or "a classifier"
        return f"{name} with 1 label, {self.activation.rpartition('.')[2]}"


def is_cross_encoder(directory: Path) -> bool:
    """Return True if the directory holds only a transformer, a classifier by its config.json.

    Raises LoadError for a CrossEncoder of other modules.
    """
    modules = modules_of(directory)
    if len(modules) == 1:
        return head(read_fields(modules[0][1] / "config.json", required=False)) == CLASSIFIER
    if saved_as(directory) == CROSS_ENCODER:
        chain = " → ".join(kind for kind, _ in modules)
        message = f"modules.json in {directory}: a CrossEncoder of {chain} cannot be served; supported is Transformer"
        raise LoadError(message, "unsupported")
    return False


def activation_of(saved: Fields, config: Fields) -> str:
    """Return the activation's dotted name, from the files where sentence-transformers has saved it, newest first.

    `saved` may be of another class, which has no such key.
    """
    named = (
        saved.text("activation_fn", ""),
        config.fields("sentence_transformers").text("activation_fn", ""),
        config.text("sbert_ce_default_activation_function", ""),
    )
    return next(filter(None, named), "torch.nn.modules.activation.Sigmoid")
