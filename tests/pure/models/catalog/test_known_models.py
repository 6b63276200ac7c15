"""Layout of the model files of public models."""

from collections import Counter

import pytest

from sie_triton.contract.names import triton_name
from sie_triton.contract.spec import Runtime
from sie_triton.errors import UnbuiltFamily
from sie_triton.models.catalog import known_models, starter_set
from sie_triton.models.catalog.load import known_model
from sie_triton.models.catalog.options import check_template
from sie_triton.models.families import FAMILIES
from tools.pages.models import shipped


@pytest.fixture(scope="module")
def known():
    return {path: model for path, model in shipped() if path.parent.name == "known"}


def test_a_file_is_found_by_the_name_of_its_model(known):
    assert [path.stem for path in known] == [triton_name(model["sie_id"]) for model in known.values()]
    assert max(Counter(path.stem.lower() for path in known).values()) == 1
    assert not {model.sie_id for model in starter_set()} & {model["sie_id"] for model in known.values()}


def test_the_weights_or_the_default_adapter_have_the_name_of_the_model(known):
    for model in known.values():
        options = model["profiles"]["default"].get("adapter_options", {}).get("runtime", {})
        if not model.get("package_backed"):
            assert model["sie_id"] == options.get("lora_id", model.get("hf_id"))


def test_every_model_has_a_family_of_ours(known):
    families = {model["profiles"]["default"]["adapter_path"] for model in known.values()}
    assert families <= {*FAMILIES}


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
    assert (len(served), refused) == (245, ["nvidia/llama-nemoretriever-colembed-3b-v1"])
