"""Directories that no family can serve: each has its own message, which names the contents and a remedy."""

from pathlib import Path

import pytest
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from sentence_transformers.sparse_encoder.modules import SparseAutoEncoder

from sie_triton.errors import CatalogError
from sie_triton.models.catalog import recognise
from tests.support.layouts import (
    SETTINGS,
    Build,
    bare,
    bare_with_head,
    changed,
    cut_off,
    dense,
    files,
    of_modules,
    saved,
    splade,
    with_file,
)
from tests.support.models import save_tokenizer

TINY = {"d_model": 32, "num_layers": 1, "num_heads": 2, "d_ff": 32, "d_kv": 16, "vocab_size": 99}
VIT = transformers.ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
WAV2VEC2 = transformers.Wav2Vec2Config(
    hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, conv_dim=(8,), conv_stride=(2,),
    conv_kernel=(2,), num_feat_extract_layers=1, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
)  # fmt: skip
LORA = {"peft_type": "LORA", "base_model_name_or_path": "org/base", "r": 8, "target_modules": ["query"]}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 90868376\n"
SHARDED = b'{"weight_map": {"embeddings.word_embeddings.weight": "model-00001-of-00002.safetensors"}}'


def tokenizer_alone(root: Path, tokenizer: Path) -> Path:
    save_tokenizer(root, tokenizer)
    return root


def encoder(directory: Path) -> Transformer:
    return Transformer(str(directory))


def two_ways(directory: Path) -> Router:
    way = [Transformer(str(directory)), Pooling(64)]
    return Router.for_query_document(query_modules=way, document_modules=[way[0], Pooling(64, "cls")])


def static(directory: Path) -> StaticEmbedding:
    return StaticEmbedding(transformers.AutoTokenizer.from_pretrained(directory), embedding_dim=8)


REFUSED: dict[str, tuple[Build, str]] = {
    "nothing": (files(), r"is empty; a model has config\.json, tokenizer\.json and model\.safetensors"),
    "a tokenizer alone": (tokenizer_alone, "the directory has a tokenizer, but no model"),
    "something else": (files(README__md=b"# Notes"), r"config\.json is missing; found 'README\.md'"),
    "no weights": (with_file(bare(), "", b""), r"has no model\.safetensors; the weights are missing"),
    "GGUF": (files(model__gguf=b"GGUF"), r"config\.json is missing, and model\.gguf is GGUF; serve the directory"),
    "ONNX alone": (with_file(splade(), "onnx/model.onnx", b"\x08"), r"onnx/model\.onnx is ONNX; models of this kind"),
    "model files": (files(b__yaml=b"", a__yaml=b""), r": holds model files \(a\.yaml\), not a model; serve them with"),
    "an ONNX file without its configuration": (
        files(model__onnx=b"\x08", tokenizer__json=b"{}"),
        r": config\.json is missing beside model\.onnx; copy the files that were exported with the model there$",
    ),
    "an ONNX file alone": (files(model__onnx=b"\x08"), r": config\.json and tokenizer\.json are missing beside model"),
    "a pickle alone": (with_file(bare(), "pytorch_model.bin", b"\x80"), "is a pickle; only safetensors are accepted:"),
    "TensorFlow alone": (with_file(bare(), "tf_model.h5", b"\x89"), r"tf_model\.h5 is TensorFlow; save the model from"),
    "a LoRA adapter": (files(adapter_config__json=LORA), "is a PEFT adapter .* for 'org/base', .*merge it into"),
    "an adapter beside its model": (
        with_file(bare(), "adapter_config.json", b"{}", without="nothing"),
        "is a PEFT adapter .* for None",
    ),
    "a pipeline of diffusers": (
        files(model_index__json={"_class_name": "StableDiffusionPipeline"}),
        r"is a diffusers pipeline \(model_index\.json\)",
    ),
    "an encoder-decoder": (
        saved(lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**TINY))),
        "T5ForConditionalGeneration is an encoder-decoder, which generates text; to serve its encoder, save",
    ),
    "a head for answers": (bare_with_head("QuestionAnswering"), "BertForQuestionAnswering has a head that no"),
    "an image model": (saved(lambda: transformers.ViTModel(VIT)), r"vit \(image_size\) reads images; it cannot be"),
    "an audio model": (saved(lambda: transformers.Wav2Vec2Model(WAV2VEC2)), r"wav2vec2 \(conv_kernel\) reads audio;"),
    "weights cut off": (cut_off(bare()), r"model\.safetensors: has \d+ bytes, but its header says \d+: it is"),
    "weights that are text": (with_file(bare(), "model.safetensors", b"no"), "is not a safetensors file, or is"),
    "a pointer of Git LFS": (with_file(bare(), "model.safetensors", POINTER), "is a Git LFS pointer, .*git lfs pull"),
    "a part of the weights": (
        with_file(bare(), "model.safetensors.index.json", SHARDED),
        r"model-00001-of-00002\.safetensors is missing in",
    ),
    "a layer cut off": (cut_off(dense(dense=48), "2_Dense/model.safetensors"), "2_Dense/model.safetensors: has"),
    "a pickled layer": (
        with_file(dense(dense=48), "2_Dense/pytorch_model.bin", b"\x80", without="2_Dense/model.safetensors"),
        r"2_Dense: pytorch_model\.bin: weights only as pickles, which can carry code; save the model as",
    ),
    "no fast tokenizer": (with_file(bare(), "", b"", without="tokenizer.json"), r"tokenizer\.json is missing in .*;"),
    "a masked language model": (bare_with_head("MaskedLM"), r"BertForMaskedLM can be served as a sparse model"),
    "a language model": (bare_with_head("CausalLM", "qwen3"), r"Qwen3ForCausalLM can be served as an embedding model"),
    "a CrossEncoder of other modules": (
        of_modules(
            encoder, lambda _: Pooling(64), lambda _: Dense(64, 1, module_output_name="scores"), library=CrossEncoder
        ),
        "a CrossEncoder of Transformer → Pooling → Dense cannot be served; supported is Transformer$",
    ),
    "static vectors behind layers": (
        of_modules(static, lambda _: Dense(8, 4), library=SentenceTransformer),
        "StaticEmbedding → Dense cannot be served; supported is StaticEmbedding → Normalize",
    ),
    "a sparse autoencoder": (
        of_modules(encoder, lambda _: Pooling(64), lambda _: SparseAutoEncoder(64, 128, 8, 8), library=SparseEncoder),
        "Transformer → Pooling → SparseAutoEncoder cannot be served",
    ),
    "states without pooling": (of_modules(encoder, library=SentenceTransformer), r"Transformer cannot be served;"),
    "two ways": (of_modules(two_ways, library=SentenceTransformer), "queries and documents go through different"),
    "tokens of its own": (
        changed(dense(), "sentence_bert_config.json", processor_kwargs={"tokenizer_file": "other.json"}),
        "processor_kwargs: 'tokenizer_file': 'other.json' cannot be served; leave this key out",
    ),
    "other states": (
        changed(
            dense(),
            "sentence_bert_config.json",
            modality_config={"text": {"method": "get_text_features", "method_output_name": "pooler_output"}},
        ),
        "get_text_features → pooler_output cannot be served; supported is forward → last_hidden_state",
    ),
    "a default prompt that is none": (
        changed(dense(), SETTINGS, default_prompt_name="passage"),
        "default_prompt_name: prompts has no 'passage'; its names are",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_each_unsupported_directory_has_its_own_error_message(name, tmp_path, minilm_directory):
    build, sentence = REFUSED[name]
    directory = build(tmp_path / "saved", minilm_directory)
    with pytest.raises(CatalogError, match=sentence) as caught:
        recognise(directory, "my/model", {"weights_path": str(directory)})
    assert str(directory) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
