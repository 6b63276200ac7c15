"""spm.model → DeBERTa's tokenizer, as transformers 4 makes it. No torch.

transformers 5 ignores the character replacements in the file, with which the models were trained.
"""

from pathlib import Path

import tokenizers
from tokenizers import normalizers, pre_tokenizers, processors

from sie_triton.checkpoints.files import read_fields
from sie_triton.checkpoints.sentencepiece import SentencePiece
from sie_triton.errors import LoadError

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def of_deberta(path: Path) -> tokenizers.Tokenizer:
    """Build DeBERTa's tokenizer. Raise LoadError if the file does not hold one."""
    model, settings = SentencePiece.read(path), read_fields(path.parent / "tokenizer_config.json", required=False)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(list(model.pieces), model.unknown, byte_fallback=False))
    tokenizer.add_tokens([tokenizers.AddedToken(text, normalized=False, special=is_) for text, is_ in model.added])
    tokenizer.add_special_tokens(list(SPECIAL))
    parts: list[normalizers.Normalizer] = [normalizers.Lowercase()] if settings.flag("do_lower_case", False) else []
    parts.append(normalizers.Strip())
    if model.charsmap:
        parts.append(normalizers.Precompiled(model.charsmap))
    parts.append(normalizers.Replace(tokenizers.Regex(" {2,}"), " "))
    tokenizer.normalizer = normalizers.Sequence(parts)
    words: list[pre_tokenizers.PreTokenizer] = (
        [pre_tokenizers.Punctuation("isolated")] if settings.flag("split_by_punct", False) else []
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, pre_tokenizers.Metaspace("▁", "always")])
    known = [text for text, _ in model.pieces]
    around = [(text, known.index(text)) for text in ("[CLS]", "[SEP]") if text in known]
    if len(around) < 2:
        raise LoadError(f"{path}: has no [CLS] and [SEP]; only DeBERTa's model can be read", "unsupported")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=around
    )
    return tokenizer
