"""Layout of the model files of public models."""

from collections import Counter

import pytest

from sie_triton.contract import ENCODE_OUTPUTS, TASKS
from sie_triton.contract.names import triton_name
from sie_triton.contract.spec import Runtime
from sie_triton.errors import UnbuiltFamily
from sie_triton.models.catalog import known_models, starter_set
from sie_triton.models.catalog.load import known_model
from sie_triton.models.catalog.options import check_template
from sie_triton.models.families import FAMILIES
from tools.pages.models import shipped

ORDER = (
    *("sie_id", "hf_id", "package_backed", "license", "allow_pickle"),
    *("inputs", "tasks", "max_sequence_length", "profiles"),
)
PROFILE_ORDER = ("extends", "compute_precision", "adapter_path", "adapter_options")

# The hub names no licence.
WITHOUT_LICENCE = {
    "docling",
    "jackboyla/glirel-large-v0",
    "rasyosef/splade-mini",
}
# The licence could not be looked up.
LICENCE_NOT_FOUND = {
    "Marqo/marqo-ecommerce-embeddings-B",
    "MoritzLaurer/deberta-v3-base-zeroshot-v2.0",
    "Qdrant/splade-ecommerce-esci",
    "fastino/gliner2-large-v1",
    "gliner-community/gliner_small-v2.5",
    "knowledgator/gliclass-base-v3.0",
    "knowledgator/gliclass-edge-v3.0",
    "knowledgator/gliclass-instruct-edge-v1.0",
    "knowledgator/gliclass-large-v3.0",
    "knowledgator/gliclass-modern-base-v3.0",
    "knowledgator/gliclass-multilang-edge",
    "knowledgator/gliclass-multilang-mini",
    "knowledgator/gliclass-multilang-ultra",
    "knowledgator/gliclass-small-v1.0",
    "knowledgator/gliner-bi-base-v2.0",
    "knowledgator/gliner-bi-edge-v2.0",
    "knowledgator/gliner-bi-large-v2.0",
    "knowledgator/gliner-bi-small-v2.0",
    "knowledgator/gliner-pii-base-v1.0",
    "knowledgator/gliner-pii-edge-v1.0",
    "knowledgator/gliner-pii-large-v1.0",
    "knowledgator/gliner-pii-small-v1.0",
    "knowledgator/opir-edge-multilang-v1.0",
    "knowledgator/opir-edge-v1.0",
    "knowledgator/opir-multitask-large-v1.0",
    "knowledgator/opir-multitask-multilang-v1.0",
    "mynkchaudhry/Florence-2-FT-DocVQA",
    "naver-clova-ix/donut-base-finetuned-cord-v2",
    "naver-clova-ix/donut-base-finetuned-rvlcdip",
    "openai/clip-vit-base-patch16",
    "openai/clip-vit-base-patch32",
    "openai/clip-vit-large-patch14",
    "sentence-transformers/multi-qa-mpnet-base-dot-v1",
    "sugiv/stablebridge-pruner-highlighter",
    "tencent/R3-embedding-0.6b",
    "tencent/R3-rerank-0.6b",
    "vidore/colpali-v1.3-hf",
    "vidore/colqwen2.5-v0.2",
}


@pytest.fixture(scope="module")
def known():
    return {path: model for path, model in shipped() if path.parent.name == "known"}


def test_a_file_is_found_by_the_name_of_its_model(known):
    assert [path.stem for path in known] == [triton_name(model["sie_id"]) for model in known.values()]
    assert max(Counter(path.stem.lower() for path in known).values()) == 1
    assert not {model.sie_id for model in starter_set()} & {model["sie_id"] for model in known.values()}


def test_hub_ids_equal_model_names(known):
    named = {model["sie_id"]: model.get("hf_id") for model in known.values() if not model.get("package_backed")}
    assert named == {name: name for name in named}


def test_keys_stand_in_one_order(known):
    for path, model in known.items():
        assert list(model) == [key for key in ORDER if key in model], path
        assert list(model["tasks"]) == [task for task in TASKS if task in model["tasks"]], path
        encode = model["tasks"].get("encode", {})
        assert list(encode) == [name for name in ENCODE_OUTPUTS if name in encode], path
        assert next(iter(model["profiles"])) == "default", path
        for profile in model["profiles"].values():
            assert list(profile) == [key for key in PROFILE_ORDER if key in profile], path


def test_files_hold_no_comments(known):
    assert [path for path in known if "#" in path.read_text(encoding="utf-8")] == []


def test_every_model_has_a_family_of_ours(known):
    families = {model["profiles"]["default"]["adapter_path"] for model in known.values()}
    assert families <= {*FAMILIES}


def test_every_model_says_its_licence_or_is_listed(known):
    without = {model["sie_id"] for model in known.values() if "license" not in model}
    assert without == WITHOUT_LICENCE | LICENCE_NOT_FOUND


def test_other_profiles_build_on_the_default_one(known):
    for path, model in known.items():
        others = [profile for name, profile in model["profiles"].items() if name != "default"]
        assert {profile.get("extends") for profile in others} <= {"default"}, path


def test_templates_hold_real_line_breaks(known):
    for path, model in known.items():
        for profile in model["profiles"].values():
            runtime = profile.get("adapter_options", {}).get("runtime", {})
            for key in ("query_template", "doc_template"):
                assert "\\" not in check_template(runtime.get(key, "{text}")), path


def test_each_but_one_is_served():
    served, refused = [], []
    for name in known_models():
        model = known_model(name)
        assert model.sie_id == name
        try:
            model.resolve(Runtime())
        except UnbuiltFamily:
            refused.append(name)
        else:
            served.append(name)
            assert all("LoRA" in line for line in model.warnings()), model.warnings()
    assert (len(served), refused) == (225, ["nvidia/llama-nemoretriever-colembed-3b-v1"])
