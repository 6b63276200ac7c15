"""Reader of the files of a transformers classifier: its labels, and which of them means entailment."""

from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.architecture import CLASSIFIER, architecture, head
from sie_triton.checkpoints.files import Fields, read_fields
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.modules import TextFiles, modules_of

SINGLE, MULTI, REGRESSION = PROBLEMS = (
    "single_label_classification",
    "multi_label_classification",
    "regression",
)


@dataclass(frozen=True, slots=True)
class ClassifierFiles:
    """Files of a classifier. `labels` are class names in the order of the logits; `problem_type` may be empty."""

    text: TextFiles
    labels: tuple[str, ...]
    problem_type: str

    @classmethod
    def read(cls, directory: Path) -> "ClassifierFiles":
        text = TextFiles.read(directory)
        model_inputs(text.transformer)
        return cls(text, labels_of(text.config), text.config.text("problem_type", ""))

    @property
    def is_multi_label(self) -> bool:
        """True if each label has its own probability, as that of a classifier with a single label."""
        return self.problem_type == MULTI or len(self.labels) == 1

    @property
    def name(self) -> str:
        return architecture(self.text.config) or "a classifier"

    @property
    def entailment(self) -> int | None:
        """Index of the entailment label; None if the model is not trained for natural language inference."""
        names = [name.lower() for name in self.labels]
        return next((i for i, name in enumerate(names) if name.startswith("entail")), None)

    @property
    def contradiction(self) -> int:
        """Index of the contradiction label.

        If no name begins like one, transformers' choice: the first label, or the last if the first is the entailment.
        """
        names = [name.lower() for name in self.labels]
        named = (i for i, name in enumerate(names) if name.startswith(("contradict", "not_entail", "not entail")))
        return next(named, len(names) - 1 if self.entailment == 0 else 0)


def labels_of(config: Fields) -> tuple[str, ...]:
    """Return the labels that config.json names, or else transformers' default names."""
    named = config.text_map("id2label")
    if not named:
        count = config.integer("num_labels", 2, least=1, most=LIMITS.max_classes)
        return tuple(f"LABEL_{i}" for i in range(count))
    if set(named) != {str(i) for i in range(len(named))}:
        raise config.corrupt(f"id2label: must have the keys 0 to {len(named) - 1}")
    return tuple(named[str(i)] for i in range(len(named)))


def model_inputs(transformer: Path) -> tuple[str, ...]:
    """Return the model inputs that the tokenizer makes, as its files name them."""
    return read_fields(transformer / "tokenizer_config.json", required=False).texts("model_input_names")


def is_classifier(directory: Path) -> bool:
    """Return True if the directory holds only a transformer, by its config.json a classifier of several classes."""
    modules = modules_of(directory)
    if len(modules) != 1:
        return False
    config = read_fields(modules[0][1] / "config.json", required=False)
    return head(config) == CLASSIFIER and len(labels_of(config)) > 1
