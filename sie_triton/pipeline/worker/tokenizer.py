"""Write the tokenizer that transformers makes of a checkpoint's files as tokenizer.json; runs in a worker process.

transformers decides by tokenizer_config.json, added_tokens.json, special_tokens_map.json, config.json, the tokenizer's
class and its own version. Nothing of that is repeated here: preprocess reads what this module writes.
"""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from time import thread_time
from types import SimpleNamespace
from typing import Any

import tokenizers
from tokenizers import processors

from sie_triton.checkpoints.files import MOST, Fields, first_line, read_fields
from sie_triton.checkpoints.special_tokens import CONFIG, MAX_BYTES, TOKENIZER
from sie_triton.checkpoints.tokenizer_steps import check_tokenizer
from sie_triton.errors import LoadError
from sie_triton.models.inputs.tokenizer import open_tokenizer
from sie_triton.pipeline.worker.messages import WriteTokenizer

log = logging.getLogger("sie_triton.pipeline.worker")

# Texts on which the written tokenizer is compared with the library's, besides one for each added token.
TEXTS = (
    "",
    "x",
    "Hello, World!",
    "Größe  naïve İ ﬁ①",
    "日本語 東京\n\ttext",
    "Привет मुझे 👩‍👩‍👧",
    "a</s> <pad>b [MASK]",
)
MAX_ADDED = 100

# Texts for which a pattern of the tokenizer may take very long, and the limit in seconds of processor time. They take a
# millisecond by those of known models.
LONG = tuple((part * 1000)[:1000] for part in ("x", " ", "1", "-", "\n", "é", "字", "It's 42 words, or so. "))
MAX_S = 0.25

# Written as the maximum length, so that only the direction of a truncation remains.
UNLIMITED = 10**9

# SentencePiece's character map, as the tokenizers library names it, and DeBERTa's file that holds one.
MAP, DEBERTA = "Precompiled", "spm.model"


def write_tokenizer(order: WriteTokenizer) -> None:
    """Write the tokenizer, and its settings as transformers resolves them. LoadError says why there is none."""
    # Only these files: a class of the library reads no weights and no code beside them.
    with TemporaryDirectory(prefix="sie-tokenizer-") as place:
        for name, path in order.files.items():
            os.symlink(path.absolute(), Path(place) / name)
        try:
            if TOKENIZER in order.files:
                check_tokenizer(read_fields(Path(place) / TOKENIZER, most=MAX_BYTES))
            _write(_made(Path(place), order.arguments), order)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except LoadError as exc:
            raise LoadError(str(exc).replace(f"{place}/", ""), exc.reason) from exc
        except BaseException as exc:  # the files can make the library raise anything, and its panics are no Exception
            said = first_line(ValueError(str(exc).replace(place, "the model's directory")))
            # A class in the model's own repository is code, which is never run.
            reason = "unsupported" if "auto_map" in _object(Path(place) / CONFIG) else "corrupt"
            raise LoadError(f"transformers cannot load the tokenizer: {said}", reason) from exc


def _made(place: Path, arguments: Mapping[str, Any]) -> Any:
    """Return the library's tokenizer of the files in `place`, which is one of the tokenizers library's."""
    from transformers import AutoTokenizer, TokenizersBackend

    kind = TokenizersBackend if _names_no_class(place) else AutoTokenizer
    made = kind.from_pretrained(str(place), trust_remote_code=False, local_files_only=True, **arguments)
    if not isinstance(made, TokenizersBackend):
        message = f"the tokenizer {type(made).__name__} exists in Python only, and cannot be served"
        raise LoadError(f"{message}; save it in its fast form", "unsupported")
    return made


def _write(made: Any, order: WriteTokenizer) -> None:
    for name, is_added in order.around.items():  # the library then writes its own post-processor
        setattr(made, name, is_added)
    backend = with_character_map(made, order.files)
    if max(backend.get_vocab().values(), default=0) > MOST:  # the library would write a line for each missing id
        raise LoadError(f"the tokenizer has ids of more than {MOST}", "corrupt")
    if order.append_eos:
        append(backend, made.eos_token)
    backend.no_padding()
    backend.enable_truncation(UNLIMITED, direction=made.truncation_side)
    text = backend.to_str(pretty=True)
    check_tokenizer(Fields("the tokenizer", json.loads(text)))
    (order.target / TOKENIZER).write_text(text, encoding="utf-8")
    settings = {
        **{name: token for name, token in made.special_tokens_map.items() if isinstance(token, str)},
        "tokenizer_class": type(made).__name__,
        "model_max_length": made.model_max_length,
        "model_input_names": list(made.model_input_names),
        "padding_side": made.padding_side,
        "truncation_side": made.truncation_side,
        "split_special_tokens": bool(made.split_special_tokens),
    }
    (order.target / CONFIG).write_text(json.dumps(settings, indent=1))
    check(order.target, made)


def check(directory: Path, made: Any) -> None:
    """Raise LoadError unless the files in `directory` tokenize as `made`, the library's tokenizer, does."""
    ours = open_tokenizer(directory)
    ours.no_truncation()
    for text in LONG:
        began = thread_time()
        ours.encode(text)
        if (seconds := thread_time() - began) > MAX_S:
            message = f"the tokenizer takes {seconds:.1f} s for {len(text)} characters, as {text[:20]!r}…"
            raise LoadError(f"{message}; at most {MAX_S:g} s are allowed", "unsupported")
    added = [str(token) for token in made.added_tokens_decoder.values()][:MAX_ADDED]
    for text in (*TEXTS, *(f"{token} a {token}{token}" for token in added)):
        if ours.encode(text).ids != made([text])["input_ids"][0]:
            message = f"the tokenizer {type(made).__name__} does more than tokenizer.json can say, as with {text!r}"
            raise LoadError(f"{message}; it cannot be served", "unsupported")


def _names_no_class(place: Path) -> bool:
    """True if tokenizer.json is all there is: neither a class of the tokenizer nor the type of the model is known."""
    from transformers import CONFIG_MAPPING

    if not (place / TOKENIZER).exists():
        return False
    settings, model = (_object(place / name) for name in (CONFIG, "config.json"))
    named = settings.get("tokenizer_class") or settings.get("auto_map") or model.get("tokenizer_class")
    return not named and model.get("model_type") not in CONFIG_MAPPING


def _object(path: Path) -> Mapping[str, Any]:
    return read_fields(path, required=False).values


def with_character_map(made: Any, files: Mapping[str, Path]) -> tokenizers.Tokenizer:
    """Return the tokenizer with the character map in its files, if the class of this version drops it.

    transformers 4 applies the map, and the models were trained with it.
    """
    backend: tokenizers.Tokenizer = made.backend_tokenizer
    if MAP in repr(backend.normalizer):
        return backend
    if TOKENIZER in files:
        own = tokenizers.Tokenizer.from_buffer(files[TOKENIZER].read_bytes()).normalizer
    elif DEBERTA in files:
        own = _of_deberta(made, files[DEBERTA])
    else:
        return backend
    if MAP in repr(own):
        log.warning("the tokenizer's own character map is applied, which %s leaves out", type(made).__name__)
        backend.normalizer = own
    return backend


def _of_deberta(made: Any, path: Path) -> tokenizers.normalizers.Normalizer:
    from transformers.convert_slow_tokenizer import DebertaV2Converter

    kind: Any = DebertaV2Converter
    converter = kind(SimpleNamespace(vocab_file=str(path), do_lower_case=made.do_lower_case))
    own: tokenizers.normalizers.Normalizer = converter.normalizer(converter.proto)
    return own


def append(backend: tokenizers.Tokenizer, token: str | None) -> None:
    """Make `backend` end texts, and pairs of texts, with `token` unless it does already."""
    number = None if token is None else backend.token_to_id(token)
    if token is None or number is None:
        raise LoadError(
            "the tokenizer has no end token, which the model's files ask for at the end of texts", "corrupt"
        )
    single, pair = backend.encode("a"), backend.encode("a", "a")
    if single.ids[-1:] == [number]:
        return
    tokens = zip(pair.tokens, pair.ids, pair.special_tokens_mask, strict=True)
    around = {name: id for name, id, is_special in tokens if is_special} | {token: number}
    backend.post_processor = processors.TemplateProcessing(
        single=[*_template(single), f"{token}:0"],
        pair=[*_template(pair), f"{token}:{pair.type_ids[-1]}"],
        special_tokens=list(around.items()),
    )


def _template(encoding: tokenizers.Encoding) -> list[str]:
    """Return the special tokens and the texts of an encoding, as TemplateProcessing reads them."""
    pieces = [
        f"{token if text is None else ('$A', '$B')[text]}:{kind}"
        for token, text, kind in zip(encoding.tokens, encoding.sequence_ids, encoding.type_ids, strict=True)
    ]
    # A text may have several tokens.
    once = [piece for before, piece in zip(["", *pieces], pieces, strict=False) if piece != before or piece[0] != "$"]
    if not any(piece.startswith("$A") for piece in once):
        raise LoadError("the tokenizer makes no token of 'a'", "unsupported")
    return once
