"""Tensors between this family's processor, forward pass and findings."""

from sie_triton.contract.tensors import (
    INPUT_IDS,
    LABEL_LENGTHS,
    LABEL_THRESHOLDS,
    LABEL_TOKENS,
    PIECE,
    WORD_SPANS,
    WORD_TOKENS,
    Tensor,
)

# Roles of labels: the kinds of question, and a field or class of the question before it.
ENTITIES, INSTANCES, ONE_CLASS, ANY_CLASSES, FIELD = range(5)
LABEL_ROLES = Tensor(
    "label_roles", "INT32", (-1,), "[labels] a role other than FIELD begins a question", LABEL_LENGTHS.name, 0, FIELD
)

CHOICE_TOKENS = Tensor("choice_tokens", "INT32", (-1,), "[choices] position of its token", "choice_lengths", 0)
CHOICE_LABELS = Tensor("choice_labels", "INT32", (-1,), "[choices] index of its label", CHOICE_TOKENS.lengths, 0)

FEATURES = (
    *(INPUT_IDS, PIECE, WORD_TOKENS, WORD_SPANS),
    *(LABEL_TOKENS, LABEL_THRESHOLDS, LABEL_ROLES),
    *(CHOICE_TOKENS, CHOICE_LABELS),
)

# A place with the end CHOICE is the choice with the number in start. Entities are task 0; structures, then relations
# follow.
CHOICE = -1
PLACES = Tensor(
    "places", "INT32", (-1, 5), "[places, 5] task, instance, field, start and end in the text", "place_lengths"
)
PLACE_SCORES = Tensor("place_scores", "FP32", (-1,), "[places]", PLACES.lengths)
CLASS_SCORES = Tensor("class_scores", "FP32", (-1,), "[classes] scores for all tasks", "class_lengths")

COMPUTED = (PLACES, PLACE_SCORES, CLASS_SCORES)
