"""Labels and words → one row of packed token ids, as gliner writes them. No torch."""

from collections.abc import Sequence
from pathlib import Path

from sie_triton.checkpoints.gliner import GlinerFiles
from sie_triton.contract import Label
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.families.gliner import MAX_PROMPT
from sie_triton.models.families.shared.labels.words import marked
from sie_triton.models.inputs.tokenizer import open_tokenizer
from sie_triton.models.inputs.words import LabelledWords, Pieces, WordsPrompt, WordTokenizer

# Number of words that two neighbouring pieces share; at least the maximum width of an entity.
OVERLAP = 48


class GlinerTokenizer(LabelledWords):
    """Tokenizer for rows of the form: marker label marker label … separator word word …"""

    def __init__(self, files: GlinerFiles, max_length: int, max_prompt: int) -> None:
        longest = min(max_length, files.longest(max_prompt))
        pieces = Pieces(files.max_words, longest, max(OVERLAP, files.max_width))
        tokenizer, by_last_token = open_tokenizer(files.tokenizer), files.uses_last_token
        if tokenizer.token_to_id(files.marker) is None:
            # Older versions of gliner saved these tokens only in the weights, after one that is unused.
            tokenizer.add_special_tokens(["[FLERT]", files.marker, files.separator])
        super().__init__(tokenizer, pieces, min(max_prompt, longest // 2), by_last_token=by_last_token)
        self._files = files

    def prompt(self, labels: Sequence[Label], words: WordTokenizer) -> WordsPrompt:
        return marked(labels, words, self._files.marker, self._files.separator, self._files.label_offset)


def load_processor(spec: ModelSpec, directory: Path) -> GlinerTokenizer:
    return GlinerTokenizer(GlinerFiles.read(directory), spec.max_sequence_length, MAX_PROMPT)
