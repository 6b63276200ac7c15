"""What goes between the processor, the forward pass and the findings of this family."""

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

# What a label is: what is asked for, and behind it each field or class of it.
ENTITIES, INSTANCES, ONE_CLASS, ANY_CLASSES, FIELD = range(5)
LABEL_ROLES = Tensor(
    "label_roles", "INT32", (-1,), "[labels] one that is no field begins the next", LABEL_LENGTHS.name, 0, FIELD
)

CHOICE_LENGTHS = Tensor("choice_lengths", "INT32", (-1,), "[pieces] choices of each")
CHOICE_TOKENS = Tensor("choice_tokens", "INT32", (-1,), "[choices] token of each", CHOICE_LENGTHS.name, 0)
CHOICE_LABELS = Tensor("choice_labels", "INT32", (-1,), "[choices] which label has each", CHOICE_LENGTHS.name, 0)

FEATURES = (
    *(INPUT_IDS, PIECE, WORD_TOKENS, WORD_SPANS),
    *(LABEL_TOKENS, LABEL_THRESHOLDS, LABEL_ROLES),
    *(CHOICE_TOKENS, CHOICE_LABELS),
)

# A choice has its number for a start, and CHOICE for an end. Entities are task 0; structures, then relations follow.
CHOICE = -1
PLACE_LENGTHS = Tensor("place_lengths", "INT32", (-1,), "[pieces] places of each")
PLACES = Tensor(
    "places", "INT32", (-1, 5), "[places, 5] task, instance, field, start and end in the text", PLACE_LENGTHS.name
)
PLACE_SCORES = Tensor("place_scores", "FP32", (-1,), "[places]", PLACE_LENGTHS.name)
CLASS_LENGTHS = Tensor("class_lengths", "INT32", (-1,), "[pieces] classes of each")
CLASS_SCORES = Tensor("class_scores", "FP32", (-1,), "[classes] of all tasks", CLASS_LENGTHS.name)

COMPUTED = (PLACES, PLACE_SCORES, PLACE_LENGTHS, CLASS_SCORES, CLASS_LENGTHS)
