"""Files that gliner2 saves: config.json, encoder_config/config.json, the tokenizer, and one file with all weights.

Standard library only: render and preprocess read these without torch.
"""

from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.files import Fields, read_fields, read_json
from sie_triton.checkpoints.gliner import longest_piece


@dataclass(frozen=True, slots=True)
class Gliner2Files:
    """Files of a GLiNER2 model. `max_words` limits the words of a piece, `max_width` those of a span."""

    directory: Path
    encoder: Fields
    counting_layer: str
    max_width: int
    max_words: int

    @classmethod
    def read(cls, directory: Path) -> "Gliner2Files":
        config, encoder = (read_fields(directory / name) for name in ("config.json", "encoder_config/config.json"))
        head = config.fields("span_head")
        for fields, key, served in (
            (config, "architecture", "span"),
            (config, "token_pooling", "first"),
            (head, "span_mode", "markerV0"),
        ):
            given = fields.text(key, served)
            if given != served:
                remedy = "; adapter_path: gliner2_library runs the library itself" if key == "architecture" else ""
                raise fields.unserved(f"{key} {given[:80]} cannot be served; supported is {served}{remedy}")
        return cls(
            directory=directory,
            encoder=encoder,
            counting_layer=config.one_of("counting_layer", ("count_lstm", "count_lstm_v2", "count_lstm_moe")),
            max_width=head.integer("max_width", config.integer("max_width", 8, least=1, most=1000), least=1, most=1000),
            max_words=config.integer("max_len", 512, least=1),
        )

    def longest(self, max_prompt: int) -> int:
        """Return the maximum tokens of a piece, including its schema, which has at most `max_prompt` tokens."""
        return longest_piece(self.encoder, self.max_words, max_prompt)


def is_gliner2(directory: Path) -> bool:
    config = read_json(directory / "config.json", default={})
    return isinstance(config, dict) and config.get("model_type") == "extractor"
