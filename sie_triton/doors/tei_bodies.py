"""Bodies of requests to the routes of Hugging Face's text-embeddings-inference."""

import operator
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from sie_triton.contract import TRUNCATION_SIDE
from sie_triton.doors.fields import NESTED, Body, Count, Items, Texts, allowing
from sie_triton.doors.tokenizing import check_size
from sie_triton.models.families.shared.classes import RAW_SCORES

DIRECTION = "truncation_direction"


class Truncating(Body):
    """Body with the fields that say whether and where a text beyond the model's maximum length is cut."""

    truncate: bool | None = Field(
        None, description="false: a text beyond the model's maximum length is an error; else it is truncated"
    )
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = None

    remedy: ClassVar[str] = "omit truncate to cut it"

    @property
    def refuses_long(self) -> bool:
        return self.truncate is False

    def translated(self) -> dict[str, Any]:
        return {TRUNCATION_SIDE.name: self.truncation_direction and self.truncation_direction.lower()}


class Prompted(Truncating):
    """Body with the fields of every route that returns vectors, or is computed from them."""

    prompt_name: str | None = Field(None, description="query, document, or another prompt in the model's own files")

    def translated(self) -> dict[str, Any]:
        # Other names are prompts of the model's own.
        is_query = {"query": True, "document": False}.get(self.prompt_name or "")
        return super().translated() | {
            "is_query": is_query,
            "prompt_name": self.prompt_name if is_query is None else None,
        }


class Embed(Prompted):
    """Body of a request to /embed, /embed_sparse or /embed_all."""

    inputs: Texts


class Sentences(Body):
    """A sentence, and those to compare it with."""

    model_config = ConfigDict(extra="forbid")

    source_sentence: str
    sentences: Items[str]


class SimilarityParameters(Prompted):
    """Parameters by which the sentences are read."""

    model_config = ConfigDict(extra="forbid")


class Similarity(Body):
    """Body of a request to /similarity."""

    inputs: Annotated[Sentences, NESTED]
    parameters: Annotated[SimilarityParameters, NESTED] | None = None

    fixed: ClassVar[Mapping[str, Any]] = {"normalize": True}

    @property
    def reading(self) -> SimilarityParameters:
        return self.parameters or SimilarityParameters()

    def translated(self) -> dict[str, Any]:
        return self.reading.translated()


NotRaw = Annotated[bool, allowing(operator.not_, "is not supported"), WithJsonSchema({"enum": [False]})]


class Rerank(Truncating):
    """Body of a rerank request."""

    query: str
    texts: Items[str] = Field(description="a list of strings")
    return_text: bool | None = None
    raw_scores: NotRaw | None = Field(None, description="a model's files define its scores")
    top_n: Count | None = None


def is_alone(inputs: Any) -> bool:
    """Return True if the inputs of a request to /predict are one text, or one in a list; a list of two is a pair."""
    return isinstance(inputs, str) or (isinstance(inputs, list) and bool(inputs) and isinstance(inputs[0], str))


def _texts_alone(inputs: Any) -> Any:
    """Return the texts: each is given alone, or in a list of its own."""
    rows = [inputs] if is_alone(inputs) else inputs
    if not isinstance(rows, list) or not all(isinstance(row, str | list) for row in rows):
        return rows
    if any(isinstance(row, list) and len(row) != 1 for row in rows):
        raise ValueError("has a pair of texts, which no classifier here reads; send each text in a list of its own")
    return [row if isinstance(row, str) else row[0] for row in rows]


EmptyObject = Annotated[
    dict[str, Any], allowing(operator.not_, "must be empty"), WithJsonSchema({"type": "object", "maxProperties": 0})
]
Alone = Annotated[list[str], Field(min_length=1, max_length=1)]


class Predict(Truncating):
    """Body of a request to /predict."""

    inputs: Annotated[
        Items[str],
        BeforeValidator(_texts_alone, json_schema_input_type=str | Alone | Items[Alone]),
        Field(description="a string, or a list of lists of one string"),
    ]
    raw_scores: bool | None = Field(None, description="true: the model's own numbers instead of probabilities")
    parameters: EmptyObject | None = Field(None, description="huggingface_hub sends it empty")

    def translated(self) -> dict[str, Any]:
        return super().translated() | {RAW_SCORES.name: self.raw_scores}


class Tokenize(Body):
    """Body of a request to /tokenize."""

    model_config = ConfigDict(extra="forbid")

    inputs: Texts
    add_special_tokens: bool | None = Field(None, description="false: without the tokens around a text")


def _several_rows(ids: Any) -> Any:
    """Return lists of ids: a single one may stand alone."""
    rows = [ids] if isinstance(ids, list) and ids and not isinstance(ids[0], list) else ids
    if isinstance(rows, list):
        check_size("ids", sum(len(row) for row in rows if isinstance(row, list)))
    return rows


Ids = Annotated[list[Annotated[int, Field(ge=0, lt=2**32)]], Field(min_length=1, fail_fast=True)]


class Decode(Body):
    """Body of a request to /decode."""

    model_config = ConfigDict(extra="forbid")

    ids: Annotated[
        Items[Ids],
        BeforeValidator(_several_rows, json_schema_input_type=Ids | Items[Ids]),
        Field(description="a list of ids, or a list of such lists"),
    ]
    skip_special_tokens: bool | None = Field(None, description="false: with the tokens around a text")
