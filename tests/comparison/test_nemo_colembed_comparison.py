"""Vectors of queries and pages equal those of transformers' Qwen3VLModel on the same weights, as Nemotron uses it.

The reference attends to all tokens by a mask of zeros, and takes the states before the final norm.
"""

import numpy as np
import pytest
import torch
import transformers

from sie_triton.client.items import encoded
from sie_triton.contract.tensors import TRUNCATED
from sie_triton.errors import LoadError
from sie_triton.models.catalog.recognise import family_in
from tests.support.items import Served
from tests.support.pages import same, vectors_of
from tests.support.pictures import pictures
from tests.support.qwen3_vl import Qwen3Library, save_nemo_colembed

FILES = pictures()
QUERIES = ["What does the invoice say?", "two dogs", "", "naïve 😀 größe"]
DOCUMENTS = [{"image": FILES[0]}, {"image": FILES[1], "text": "a page"}, "two dogs", {"image": FILES[3]}]
OPTIONS = {"dims": {"multivector": 64}, "tasks": ("encode", "score"), "score_modes": ("maxsim",)}

# Small, so that long texts of either role are truncated; an image has at least 64 tokens.
LONGEST_QUERY, LONGEST_DOCUMENT = 24, 120
LONG = "page " * 400

# The part of Qwen3-VL's chat template for texts and images of a user.
TEMPLATE = """
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\n' -}}
    {%- for part in message.content -%}
        {{- '<|vision_start|><|image_pad|><|vision_end|>' if part.type == 'image' else part.text -}}
    {%- endfor -%}
    {{- '<|im_end|>\n' -}}
{%- endfor -%}
{{- '<|im_start|>assistant\n' if add_generation_prompt else '' -}}
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory, minilm_directory):
    limits = {"q_max_length": LONGEST_QUERY, "p_max_length": LONGEST_DOCUMENT}
    return save_nemo_colembed(tmp_path_factory.mktemp("nemo_colembed"), minilm_directory, **limits)


@pytest.fixture(scope="module")
def ours(directory):
    name, found = family_in(directory)
    assert (name, dict(found.dims), found.scores, found.doubt) == ("nemo_colembed", {"multivector": 64}, True, "")
    assert found.max_sequence_length == LONGEST_DOCUMENT
    served = Served("nemo_colembed", directory, **OPTIONS)
    assert (served.adapter.encoder.path, served.adapter.encoder.paths) == ("packed", ("packed",))
    return served


class Library(Qwen3Library):
    """What the authors' processor and model do with one item."""

    def __init__(self, directory):
        config = transformers.Qwen3VLConfig.from_pretrained(directory)
        model = transformers.Qwen3VLModel.from_pretrained(directory, config=config, attn_implementation="eager")
        super().__init__(directory, model, {})
        self.model.language_model.norm.register_forward_pre_hook(self._keep)

    def _keep(self, module, arguments):
        (self.before_norm,) = arguments

    def query(self, text):
        ids = self.ids([{"type": "text", "text": f"Query: query: {text}"}], "", LONGEST_QUERY)
        return self(ids, {})

    def document(self, item):
        item = {"text": item} if isinstance(item, str) else item
        images, seen = self.pictures([item["image"]] if "image" in item else [])
        content = [{"type": "image"}] * len(seen) + [{"type": "text", "text": f"passage: {item.get('text', '')}"}]
        return self(self.ids(content, "".join(seen), LONGEST_DOCUMENT), images)

    def ids(self, content, seen, longest):
        asked = [{"role": "user", "content": content}]
        text = self.tokenizer.apply_chat_template(
            asked, chat_template=TEMPLATE, tokenize=False, add_generation_prompt=True
        )
        whole = text.replace("<|image_pad|>", seen) if seen else text
        return self.tokenizer(whole, truncation=True, max_length=longest)["input_ids"]

    @torch.inference_mode()
    def __call__(self, ids, images):
        inputs = self.inputs(ids)
        positions, _ = self.model.get_rope_index(*inputs.values(), images.get("image_grid_thw"))
        seen_by_all = torch.zeros(1, 1, len(ids), len(ids))
        self.model(**inputs, position_ids=positions, attention_mask=seen_by_all, **images)
        return torch.nn.functional.normalize(self.before_norm[0], dim=-1)


def encode(served, queries, documents):
    """Vectors of queries and of documents, in one forward pass."""
    asked, told = served.together("encode", [(encoded(queries), {"is_query": True}), (encoded(documents), {})])
    return vectors_of(asked), vectors_of(told)


def test_queries_and_documents_in_one_pass(ours, library):
    asked, told = encode(ours, QUERIES, DOCUMENTS)
    assert all(map(same, asked, map(library.query, QUERIES)))
    assert all(map(same, told, map(library.document, DOCUMENTS)))
    assert np.allclose(np.linalg.norm(np.concatenate([*asked, *told]), axis=1), 1, atol=1e-5)
    for query, together in zip(QUERIES, asked, strict=True):
        assert np.allclose(vectors_of(ours.encode([query], is_query=True))[0], together, atol=1e-5)
    for document, together in zip(DOCUMENTS, told, strict=True):
        assert np.allclose(vectors_of(ours.encode([document]))[0], together, atol=1e-5)


def test_the_padded_path_gives_the_same_vectors(ours, library):
    with ours.padded():
        asked, told = encode(ours, QUERIES[:1], DOCUMENTS[:2])
    assert all(map(same, [*asked, *told], [library.query(QUERIES[0]), *map(library.document, DOCUMENTS[:2])]))


def test_scores_are_the_sums_of_the_maxima(ours, library):
    sent = {"query": [QUERIES[0].encode()], "image": FILES}
    (answer,) = ours.together("score", [(sent, {})])
    query = library.query(QUERIES[0])
    expected = [(query @ library.document({"image": file}).T).max(1).values.sum() for file in FILES]
    assert np.allclose(answer["scores"], expected, rtol=1e-4)
    assert len(set(answer["scores"].round(3).tolist())) == len(FILES)


def test_long_texts_are_truncated_by_role(ours, library):
    """A conversation is cut at its end, as the authors' processor does."""
    documents = [LONG, {"image": FILES[0], "text": LONG}]
    asked, told = encode(ours, [LONG, QUERIES[1]], documents)
    assert [len(asked[0]), *map(len, told)] == [LONGEST_QUERY, LONGEST_DOCUMENT, LONGEST_DOCUMENT]
    assert all(map(same, asked, [library.query(LONG), library.query(QUERIES[1])]))
    assert all(map(same, told, map(library.document, documents)))
    features = ours.processor.encode([{"text": LONG}, {"text": QUERIES[1]}], is_query=True)
    assert features[TRUNCATED.name].values.tolist() == [True, False]


def test_an_image_is_never_truncated(tmp_path, minilm_directory):
    """Nothing remains of the conversation after it."""
    served = Served("nemo_colembed", save_nemo_colembed(tmp_path, minilm_directory, p_max_length=16), **OPTIONS)
    ids = served.processor.page()["input_ids"].values.tolist()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    num_patches = ids.count(tokenizer.convert_tokens_to_ids("<|image_pad|>"))
    assert num_patches > 16
    seen = f"<|vision_start|>{'<|image_pad|>' * num_patches}<|vision_end|>"
    assert ids == tokenizer(f"<|im_start|>user\n{seen}")["input_ids"]


def test_weights_of_another_type_are_refused(tmp_path, minilm_directory):
    save_nemo_colembed(tmp_path, minilm_directory)
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace("qwen3_vl_nemotron_embed", "llama_nemoretrievercolembed"))
    with pytest.raises(LoadError, match=r"'llama_nemoretrievercolembed' cannot be served; .* qwen3_vl_nemotron_embed"):
        Served("nemo_colembed", tmp_path, **OPTIONS)


@pytest.mark.parametrize(
    ("settings", "query", "document"),
    [
        ({"query_prefix": "ask:", "passage_prefix": "told:"}, "Query: ask: dogs", "told: dogs"),
        ({"query_prefix": "", "passage_prefix": ""}, "Query: dogs", "dogs"),
    ],
)
def test_prefixes_are_settings_of_the_processor(tmp_path, minilm_directory, settings, query, document):
    served = Served("nemo_colembed", save_nemo_colembed(tmp_path, minilm_directory, **settings), **OPTIONS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for is_query, text in ((True, query), (False, document)):
        found = served.processor.encode([{"text": "dogs"}], is_query=is_query)["input_ids"].values.tolist()
        assert found == tokenizer(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
