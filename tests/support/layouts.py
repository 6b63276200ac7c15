"""Model directories as the libraries' versions write them: saved by the real library of today, and its files rewritten
as an older version wrote them (what each wrote is taken from its releases)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

from benchmarks import architectures
from tests.support.models import (
    CONFIGS,
    save_bert,
    save_cross_encoder,
    save_encoder,
    save_splade,
    save_tokenizer,
    sharpen,
)

Build = Callable[[Path, Path], Path]

PROMPTS = {"query": "search for: ", "document": "text: "}
# How a model file says the first.
ASKING = {"query_template": "{instruction}{text}", "default_instruction": PROMPTS["query"]}
STANFORD = {"query_maxlen": 24, "doc_maxlen": 100, "dim": 32}
SETTINGS = "config_sentence_transformers.json"

# sentence-transformers 2 to 5: a truth value for each mode, in this order.
POOLING = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2))


def rewritten_before_6(directory: Path, version: str, max_length: int = 128) -> Path:
    """A dense or a sparse directory of today as `version` wrote it, one of 5.0.0, 3.0.0, 2.2.2 and 1.2.0."""
    major = int(version[0])
    modules = read(directory / "modules.json")
    for module in modules:
        _rewrite_module(directory / module["path"], module, major)
    own = read(directory / SETTINGS)
    settings: dict[str, Any] = {"__version__": {"sentence_transformers": version, "transformers": "4", "pytorch": "2"}}
    if major >= 3:
        settings |= {"prompts": own["prompts"], "default_prompt_name": None, "similarity_fn_name": "cosine"}
    if major >= 5:
        settings["model_type"] = own["model_type"]
    write(directory / "modules.json", modules)
    write(directory / SETTINGS, settings)
    write(directory / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    if major == 1:
        _into_a_folder(directory, modules)
    return directory


def _rewrite_module(path: Path, module: dict[str, Any], major: int) -> None:
    name = module["type"].rpartition(".")[2]
    package = "sentence_transformers.models"
    if "sparse_encoder" in module["type"]:
        package = "sentence_transformers.sparse_encoder.models"
    module["type"] = f"{package}.{name}"
    if name == "Pooling":
        own = read(path / "config.json")
        modes = own["pooling_mode"]
        known = list(POOLING.items())[: 6 if major >= 3 else 4]
        flags = {key: mode in ([modes] if isinstance(modes, str) else modes) for mode, key in known}
        prompt = {"include_prompt": own["include_prompt"]} if major >= 3 else {}
        write(path / "config.json", {"word_embedding_dimension": own["embedding_dimension"], **flags, **prompt})
    elif name == "Dense":
        own = read(path / "config.json")
        keys = ("in_features", "out_features", "bias", "activation_function")
        write(path / "config.json", {key: own[key] for key in keys})
        if major <= 2:
            torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    elif name == "Normalize":
        for file in path.iterdir():  # an empty folder, which git does not keep
            file.unlink()
        path.rmdir()
    elif name == "SpladePooling":
        own = read(path / "config.json")
        keys = ("pooling_strategy", "activation_function")
        write(path / "config.json", {**{key: own[key] for key in keys}, "word_embedding_dimension": 30522})


def _into_a_folder(directory: Path, modules: list[dict[str, Any]]) -> None:
    """Move the transformer into a folder, as before version 2, and write config.json as the library did then."""
    folder = directory / "0_Transformer"
    folder.mkdir()
    for path in [each for each in directory.iterdir() if each.is_file() and each.name != "modules.json"]:
        path.rename(folder / path.name)
    (folder / SETTINGS).unlink()
    modules[0]["path"] = folder.name
    write(directory / "modules.json", modules)
    write(directory / "config.json", {"__version__": "1.2.0"})


def dense(version: str = "", **options: Any) -> Build:
    def build(root: Path, tokenizer: Path) -> Path:
        directory = save_bert(root, tokenizer, **{"prompts": PROMPTS, **options})
        return rewritten_before_6(directory, version) if version else directory

    return build


def changed(build: Build, name: str, **keys: Any) -> Build:
    """Change keys in one of the directory's JSON files; None removes a key."""

    def changed_build(root: Path, tokenizer: Path) -> Path:
        directory = build(root, tokenizer)
        path = directory / name
        content = {**(read(path) if path.exists() else {}), **keys}
        write(path, {key: value for key, value in content.items() if value is not None})
        return directory

    return changed_build


def renamed(build: Build, name: str, other: str) -> Build:
    def renamed_build(root: Path, tokenizer: Path) -> Path:
        directory = build(root, tokenizer)
        (directory / name).rename(directory / other)
        return directory

    return renamed_build


def architecture(name: str) -> Build:
    return lambda root, tokenizer: architectures.save(name, root, tokenizer, layers=2)


def bare(architecture: str = "bert") -> Build:
    """Save an encoder as transformers does."""

    def build(root: Path, tokenizer: Path) -> Path:
        save_encoder(root, tokenizer, architecture)
        return root

    return build


def in_parts(root: Path, tokenizer: Path) -> Path:
    """A bare encoder whose weights are in several files."""
    encoder = save_encoder(root, tokenizer, "bert")
    (root / "model.safetensors").unlink()
    encoder.save_pretrained(root, max_shard_size="2MB")
    return root


def bare_with_head(kind: str, architecture: str = "bert", **config: Any) -> Build:
    """Save a model as AutoModelFor… of transformers does."""

    def build(root: Path, tokenizer: Path) -> Path:
        torch.manual_seed(7)
        settings = type(CONFIGS[architecture])(**{**CONFIGS[architecture].to_diff_dict(), **config})
        model = getattr(transformers, f"AutoModelFor{kind}").from_config(settings)
        sharpen(model.base_model)
        model.save_pretrained(root)
        save_tokenizer(root, tokenizer)
        return root

    return build


def splade(version: str = "", *, idf: bool = False) -> Build:
    def build(root: Path, tokenizer: Path) -> Path:
        directory = save_splade(root, tokenizer, idf=idf)
        if version and idf:
            return _router_before_6(directory, version)
        if version:
            rewritten_before_6(directory, version)
            modules = read(directory / "modules.json")
            modules[0]["type"] = "sentence_transformers.sparse_encoder.models.MLMTransformer"
            write(directory / "modules.json", modules)
        return directory

    return build


def _router_before_6(directory: Path, version: str) -> Path:
    """Rewrite a router as OpenSearch's inference-free models of 5.0 have it."""
    router = read(directory / "router_config.json")
    for name, dotted in router["types"].items():
        kind = dotted.rpartition(".")[2]
        kind = "MLMTransformer" if kind == "Transformer" else kind
        router["types"][name] = f"sentence_transformers.sparse_encoder.models.{kind}"
    write(directory / "router_config.json", router)
    modules = read(directory / "modules.json")
    modules[0]["type"] = "sentence_transformers.models.Router"
    write(directory / "modules.json", modules)
    (transformer,) = directory.glob("document_0_*")
    write(transformer / "sentence_bert_config.json", {"max_seq_length": 512, "do_lower_case": False})
    settings = read(directory / SETTINGS)
    write(directory / SETTINGS, {**settings, "__version__": {"sentence_transformers": version}})
    return directory


def multi_vector(root: Path, tokenizer: Path) -> Path:
    """Save a directory as MultiVectorEncoder does."""
    save_encoder(root / "encoder", tokenizer, "bert")
    torch.manual_seed(3)
    modules = [
        Transformer(str(root / "encoder"), query_expansion={"strategy": "fixed", "length": 24}, document_length=100),
        Dense(64, 32, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings"),
        MultiVectorMask(skiplist_words=list(".,!")),
        Normalize(module_input_name="token_embeddings"),
    ]
    prompts = {"query": "[unused0]", "document": "[unused1]"}
    MultiVectorEncoder(modules=modules, prompts=prompts, device="cpu").save(
        str(root / "model"), create_model_card=False
    )
    return root / "model"


def cross_encoder_before_6(root: Path, tokenizer: Path, **config: Any) -> Path:
    """Save a directory as CrossEncoder did until 5: transformers' files, with the activation in config.json."""
    save_cross_encoder(root, tokenizer, **config)
    return root / "encoder"


def files(**contents: bytes | dict[str, Any]) -> Build:
    """Save a directory of these files alone, `__` for the dot; objects as JSON."""

    def build(root: Path, tokenizer: Path) -> Path:
        root.mkdir()
        for name, content in contents.items():
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            (root / name.replace("__", ".")).write_bytes(data)
        return root

    return build


def with_file(build: Build, name: str, content: bytes, without: str = "model.safetensors") -> Build:
    """Save a directory with `name` in place of `without`."""

    def build_with(root: Path, tokenizer: Path) -> Path:
        directory = build(root, tokenizer)
        (directory / without).unlink(missing_ok=True)
        if name:
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_bytes(content)
        return directory

    return build_with


def cut_off(build: Build, name: str = "model.safetensors") -> Build:
    def build_cut(root: Path, tokenizer: Path) -> Path:
        directory = build(root, tokenizer)
        content = (directory / name).read_bytes()
        (directory / name).write_bytes(content[:-4096])
        return directory

    return build_cut


def of_modules(*modules: Callable[[Path], Any], library: Any, **options: Any) -> Build:
    """Save modules as `library` does, each made from the tokenizer's directory or from that of a tiny encoder."""

    def build(root: Path, tokenizer: Path) -> Path:
        save_encoder(root / "encoder", tokenizer, "bert")
        made = [module(root / "encoder") for module in modules]
        library(modules=made, device="cpu", **options).save(str(root / "model"), create_model_card=False)
        return root / "model"

    return build


def saved(make: Callable[[], transformers.PreTrainedModel]) -> Build:
    """Save a model as transformers does, with a tokenizer."""

    def build(root: Path, tokenizer: Path) -> Path:
        make().save_pretrained(root)
        save_tokenizer(root, tokenizer)
        return root

    return build
