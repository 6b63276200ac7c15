"""Vectors of pages and questions equal those of transformers' Qwen3VLModel and a projection, as ColQwen3 uses them."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from sie_triton.errors import LoadError
from sie_triton.models.catalog.recognise import family_in
from tests.support.items import Served
from tests.support.pages import same, save_qwen3_vl, vectors_of
from tests.support.pictures import picture, pictures, saved, upright

FILES = pictures()
TEXTS = ["What does the invoice say?", " two dogs \n", "", "naïve 😀 größe"]
OPTIONS = {"dims": {"multivector": 40}, "tasks": ("encode", "score"), "score_modes": ("maxsim",)}
PROMPT = "<|im_start|>user\n<|vision_start|>{}<|vision_end|>Describe the image.<|im_end|><|endoftext|>"


@pytest.fixture(scope="module")
def directory(tmp_path_factory, minilm_directory):
    """A Qwen3-VL and a projection as TomoroAI's class saves them."""
    root = tmp_path_factory.mktemp("colqwen3")
    save_qwen3_vl(root, minilm_directory)
    tokenizer = json.loads((root / "tokenizer.json").read_text())
    (root / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": None}))
    config = json.loads((root / "config.json").read_text())
    own = {"model_type": "colqwen3", "architectures": ["ColQwen3"], "embed_dim": 40}
    (root / "config.json").write_text(json.dumps({**config, **own}))
    weights = {f"vlm.{name}": each for name, each in load_file(root / "model.safetensors").items()}
    torch.manual_seed(25)
    layer = {f"embedding_proj_layer.{name}": each.data for name, each in torch.nn.Linear(64, 40).named_parameters()}
    save_file({**weights, **layer}, root / "model.safetensors", {"format": "pt"})
    return root


@pytest.fixture(scope="module")
def ours(directory):
    name, found = family_in(directory)
    assert (name, dict(found.dims), found.scores, found.doubt) == ("colqwen3", {"multivector": 40}, True, "")
    served = Served("colqwen3", directory, **OPTIONS)
    assert (served.adapter.encoder.path, served.adapter.encoder.paths) == ("packed", ("packed",))
    return served


class Library:
    """What the authors' processor and model do with one item."""

    def __init__(self, directory):
        config = transformers.Qwen3VLConfig.from_dict(json.loads((directory / "config.json").read_text()))
        weights = load_file(directory / "model.safetensors")
        self.model = transformers.Qwen3VLModel(config)
        prefix = "vlm.model."
        self.model.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})
        self.model.eval()
        self.layer = [weights[f"embedding_proj_layer.{name}"] for name in ("weight", "bias")]
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self.images = transformers.Qwen2VLImageProcessorPil.from_pretrained(directory)
        self.images.max_pixels = 1280 * 32 * 32
        self.images.size["longest_edge"] = self.images.max_pixels

    def text(self, text):
        return self(self.tokenizer(text.strip() + "[PAD]" * 10)["input_ids"], {})

    def image(self, file):
        images = self.images([upright(file)], return_tensors="pt")
        seen = "<|image_pad|>" * (int(images["image_grid_thw"].prod()) // 4)
        return self(self.tokenizer(PROMPT.format(seen))["input_ids"], images)

    @torch.inference_mode()
    def __call__(self, ids, images):
        inputs = torch.tensor([ids])
        kinds = (inputs == self.model.config.image_token_id).int()
        positions, _ = self.model.get_rope_index(inputs, kinds, images.get("image_grid_thw"))
        states = self.model(input_ids=inputs, mm_token_type_ids=kinds, position_ids=positions, **images)
        vectors = torch.nn.functional.linear(states.last_hidden_state[0], *self.layer)
        return torch.nn.functional.normalize(vectors, dim=-1)


@pytest.fixture(scope="module")
def library(directory):
    return Library(directory)


def test_texts_and_images_in_one_request(ours, library):
    items = [TEXTS[0], *({"image": file} for file in FILES), *TEXTS[1:]]
    found = vectors_of(ours.encode(items))
    of_texts, of_images = [library.text(text) for text in TEXTS], [library.image(file) for file in FILES]
    assert all(map(same, found, [of_texts[0], *of_images, *of_texts[1:]]))


def test_prompts_are_those_of_the_processor(tmp_path, directory):
    """The files of the processor are obeyed: with another prefix, vectors are others."""
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    asked = {"query_prefix": "Query: do", "visual_prompt_prefix": "<|image_pad|> a", "visual_prompt_suffix": ""}
    (tmp_path / "processor_config.json").write_text(json.dumps(asked))
    served, reference = Served("colqwen3", tmp_path, **OPTIONS), Library(tmp_path)
    (found,) = vectors_of(served.encode([" gs\n"]))
    assert same(found, reference(reference.tokenizer("Query: dogs" + "[PAD]" * 10)["input_ids"], {}))
    (tmp_path / "processor_config.json").write_text(json.dumps({**asked, "visual_prompt_prefix": "none"}))
    with pytest.raises(LoadError, match="exactly once"):
        Served("colqwen3", tmp_path, **OPTIONS)


def test_images_have_at_most_the_tokens_of_the_authors_processor(ours, directory):
    item = {"image": saved(picture(2400, 1800, seed=3))}
    (found,) = vectors_of(ours.encode([item]))
    assert 1100 < len(found) <= 1280 + 20
    compact = Served("colqwen3", directory, options={"max_num_visual_tokens": 300}, **OPTIONS)
    assert 250 < len(vectors_of(compact.encode([item]))[0]) <= 300 + 20
