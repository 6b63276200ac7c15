"""Dense models: Transformer → Pooling → Dense layers; postprocess applies Normalize."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Literal

from sie_triton.checkpoints.architecture import CAUSAL_LM, architecture, check_pooled, head, is_bare
from sie_triton.checkpoints.files import shortened
from sie_triton.checkpoints.modules import TextFiles
from sie_triton.checkpoints.sentence_transformers import SentenceTransformerFiles
from sie_triton.contract import ENCODE_OUTPUTS, LATE_CHUNKING, TRUNCATION_SIDE
from sie_triton.contract.spec import ONNX, REMOTE, TORCH, ModelSpec, Profile
from sie_triton.models.families.base import Options, Recognised, TextFamily
from sie_triton.models.inputs import text_processor
from sie_triton.models.inputs.prompt import own_prompt
from sie_triton.models.inputs.tokenizer import TextTokenizer

log = logging.getLogger(__name__)

# The two ways to serve a bare language model. No other family recognises one.
MEANINGS = ("an embedding model (sentence_transformer)", "a reranker (llm_reranker)")

Pooling = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", "last_token", "last"]


@dataclass(frozen=True)
class PoolingOptions(Options):
    """Pooling for checkpoints that do not name it; `last` and `last_token` mean lasttoken."""

    pooling: Pooling | None = None

    def modes(self, files: SentenceTransformerFiles) -> tuple[str, ...]:
        """Return the pooling to use. That of the checkpoint takes precedence; a difference is logged."""
        if self.pooling is None:
            return files.pooling
        asked = ("lasttoken",) if self.pooling in ("last", "last_token") else (self.pooling,)
        if not files.is_declared or asked == files.pooling:
            return asked
        kept = " and ".join(files.pooling)
        log.warning(
            "pooling: the model file says %s, but the checkpoint says %s and takes precedence", self.pooling, kept
        )
        return files.pooling


def log_normalize(profiles: Sequence[Profile], files: SentenceTransformerFiles) -> None:
    """Log profiles whose normalize differs from the model's own files."""
    for profile in profiles:
        said = profile.parameters.get("normalize")
        if files.is_declared and said not in (None, files.normalize):
            own = "end in Normalize" if files.normalize else "have no Normalize"
            log.warning("profile %s: normalize is %s, but the model's own modules %s", profile.name, said, own)


@dataclass(frozen=True)
class DenseOptions(PoolingOptions):
    """Options of dense models."""

    causal: bool | None = None  # False: every token attends to its whole item, even in a decoder
    forward_kwargs: dict[Literal["is_causal"], bool] | None = None
    dense_projection_path: str | None = None  # directory of the Dense layer, for checkpoints with several
    dense_dim: int | None = None  # of its vectors
    append_eos: bool | None = None  # texts end with the tokenizer's end token, even if it adds none itself

    @property
    def is_causal(self) -> bool | None:
        """True if attention is causal; None follows the architecture."""
        return (self.forward_kwargs or {}).get("is_causal") if self.causal is None else self.causal


def reason_with_file(directory: Path, files: TextFiles, chain: str) -> str:
    """Return `chain` after the file that describes it, followed by the prompts, for Recognised.reason."""
    saved_as = architecture(files.config) or "a transformer"
    bare = f"config.json: {saved_as} without modules.json, which sentence-transformers loads as"
    prompts = [f"{name} {shortened(prompt)}" for name, prompt in sorted(files.prompts.items()) if prompt]
    named = f"; config_sentence_transformers.json: prompts {', '.join(prompts)}" if prompts else ""
    return f"{bare if is_bare(directory) else 'modules.json:'} {chain}{named}"


def doubtful(files: TextFiles, first: str, second: str) -> str:
    """Return why a bare directory with two possible meanings needs a model file."""
    name = architecture(files.config)
    return (
        f"{files.config.where}: {name} can be served as {first} or as {second}, and there is no modules.json to "
        "decide; decide in a model file, with profiles.default.adapter_path"
    )


class SentenceTransformer(TextFamily):
    outputs = (ENCODE_OUTPUTS["dense"],)
    parameters = (TRUNCATION_SIDE, LATE_CHUNKING)
    options = DenseOptions
    engines: ClassVar = {TORCH: ".adapter", ONNX: ".adapter", REMOTE: ".remote"}
    unread_options: ClassVar = {REMOTE: tuple(field.name for field in fields(DenseOptions))}
    takes_loras = True
    reference_adapters = (
        "sentence_transformer:SentenceTransformerDenseAdapter",
        "bert_flash:BertFlashAdapter",
        "xlm_roberta_flash:XLMRobertaFlashAdapter",
        "modernbert_flash:ModernBERTFlashAdapter",
        "rope_flash:RoPEFlashAdapter",
        "nomic_flash:NomicFlashAdapter",
        "qwen2_flash:Qwen2FlashAdapter",
        "pytorch_embedding:PyTorchEmbeddingAdapter",
        "sglang:SGLangEmbeddingAdapter",
        "sglang.embedding:SGLangEmbeddingAdapter",
        "candle:CandleEmbeddingAdapter",
    )

    def recognise(self, directory: Path) -> Recognised:
        """Recognise every directory that no other family has recognised."""
        files = SentenceTransformerFiles.read(directory)
        doubt = ""
        if is_bare(directory):
            check_pooled(files.text.config)
            doubt = doubtful(files.text, *MEANINGS) if head(files.text.config) == CAUSAL_LM else ""
        return Recognised(
            reason_with_file(directory, files.text, files.chain),
            files.text.lengths.longest,
            {"dense": files.dim},
            normalize=files.normalize,
            options={"pooling": files.pooling[0]} if len(files.pooling) == 1 else {},
            query_prompt=own_prompt(files.text.prompts, True),
            weights=(files.text.transformer, *(layer.directory for layer in files.dense)),
            doubt=doubt,
        )


def load_processor(spec: ModelSpec, directory: Path) -> TextTokenizer:
    processor = text_processor.load_processor(spec, directory)
    if spec.engine != REMOTE:
        options = DenseOptions.of(spec)
        files = SentenceTransformerFiles.read(directory, options.dense_projection_path)
        modes = files.pooling if files.is_declared else options.modes(files)  # which would log a difference again
        processor.pools_means = modes == ("mean",)
    return processor
