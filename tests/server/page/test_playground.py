"""The playground of the page, in a real Chromium before a real server."""

import base64
import re

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.server.page.actions import (
    NASTY,
    NEEDS_CHROMIUM,
    TINY,
    answer,
    cells,
    choose,
    curled,
    expect_refusal,
    run,
    without_times,
)
from tests.support.browsers import tab_of
from tests.support.page_service import BGE_M3, CLIP, GLINER
from tests.support.pictures import pictures

pytestmark = NEEDS_CHROMIUM


def test_encode_gives_the_vectors_of_the_api(page, service):
    texts = ["one two", "", "three", "one two"]
    choose(page, f"{BGE_M3}:long", "Encode")
    page.get_by_label("Texts").fill("\n".join(texts))
    run(page, "Encode")
    expected = answer(service, "encode", f"{BGE_M3}:long", {"items": [text for text in texts if text]})
    vectors = np.array([item["dense"]["values"] for item in expected["items"]])
    for (name, output, size, norm, first), text, vector in zip(
        cells(page.locator(".vectors")), filter(None, texts), vectors, strict=True
    ):
        assert (name, output, size) == (text, "dense", "64")
        assert float(norm) == pytest.approx(np.linalg.norm(vector), abs=1e-4)
        assert [float(each) for each in first.removesuffix(", …").split(", ")] == pytest.approx(vector[:6], abs=1e-4)
    similar = np.array([line[1:] for line in cells(page.locator(".matrix"))], float)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert similar == pytest.approx(units @ units.T, abs=1e-3)


def test_each_output_of_a_model_can_be_chosen(page):
    choose(page, BGE_M3, "Encode")
    page.get_by_label("Texts").fill("one two")
    for output, size in (("sparse", r"^\d+ of 30,522$"), ("multivector", r"^3 × 32$"), ("dense", "^64$")):
        page.get_by_label("Output").select_option(output)
        run(page, "Encode")
        ((_, shown, measured, *_),) = cells(page.locator(".vectors"))
        assert shown == output
        assert re.match(size, measured)


def test_score_ranks_the_documents_as_the_api_does(page, service):
    documents = ["ships sail", "roses climb", "vines climb walls"]
    choose(page, BGE_M3, "Score")
    page.get_by_label("Query").fill("what climbs?")
    page.get_by_label("Documents").fill("\n".join(documents))
    run(page, "Score")
    expected = answer(service, "score", BGE_M3, {"query": {"text": "what climbs?"}, "items": documents})["scores"]
    ranked = sorted(expected, key=lambda each: each["rank"])
    names = [documents[int(each["item_id"].removeprefix("item-"))] for each in ranked]
    shown = cells(page.locator(".ranked"))
    assert [(rank, document) for rank, _, document in shown] == [(str(i + 1), name) for i, name in enumerate(names)]
    assert [float(score) for _, score, _ in shown] == pytest.approx([each["score"] for each in ranked], abs=1e-4)


def test_extract_marks_the_entities_of_the_api(page, service):
    text = "🌿 Ada Lovelace\nlived in <London>."
    choose(page, GLINER, "Extract")
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_label("Labels").fill(" person, city ,")
    run(page, "Extract")
    body = {"items": [text], "params": {"labels": ["person", "city"]}}
    entities = answer(service, "extract", GLINER, body)["items"][0]["entities"]
    assert entities
    shown = [(name, label) for name, label, _ in cells(page.locator("#result table"))]
    assert shown == [(" ".join(each["text"].split()), each["label"]) for each in entities]
    marks = page.locator(".marked").evaluate("node => [...node.querySelectorAll('mark')].map(m => m.firstChild.data)")
    assert marks == [each["text"] for each in sorted(entities, key=lambda each: each["start"])]
    assert (
        page.locator(".marked").evaluate(
            "node => (node.querySelectorAll('small').forEach(l => l.remove()), node.textContent)"
        )
        == text
    )


def test_an_image_is_encoded_beside_texts(page, service, tmp_path):
    picture = pictures()[0]
    (tmp_path / "it's a picture.png").write_bytes(picture)
    choose(page, CLIP, "Encode")
    page.get_by_label("Texts").fill("a garden")
    page.get_by_label("File").set_input_files(tmp_path / "it's a picture.png")
    run(page, "Encode")
    body = {"items": [{"text": "a garden"}, {"image": {"data": base64.b64encode(picture).decode()}}]}
    expected = answer(service, "encode", CLIP, body)
    assert [line[0] for line in cells(page.locator(".vectors"))] == ["a garden", "it's a picture.png"]
    first = cells(page.locator(".vectors"))[1][-1].removesuffix(", …").split(", ")
    assert list(map(float, first)) == pytest.approx(expected["items"][1]["dense"]["values"][:6], abs=1e-4)
    assert curled(page, tmp_path) == expected


# Model, task, values of the fields, and the body of the same request.
REQUESTS = [
    (TINY, "Encode", {"Texts": "\n".join(NASTY)}, {"items": NASTY}),
    (
        BGE_M3,
        "Score",
        {"Query": NASTY[0], "Documents": "\n".join(NASTY)},
        {"query": {"text": NASTY[0]}, "items": NASTY},
    ),
    (
        GLINER,
        "Extract",
        {"Text": "\n".join(NASTY), "Labels": "it's, $HOME"},
        {"items": ["\n".join(NASTY)], "params": {"labels": ["it's", "$HOME"]}},
    ),
]


@pytest.mark.parametrize(("role", "options"), [("", {}), ("query", {"is_query": True})])
def test_role_and_dimensions_are_sent_as_options(page, role, options):
    choose(page, BGE_M3, "Encode")
    page.get_by_label("Texts").fill("one two")
    page.get_by_label("Role").select_option(role)
    page.get_by_label("Dimensions").fill("8")
    with page.expect_request("**/v1/encode/**") as request:
        run(page, "Encode")
    assert request.value.post_data_json["params"]["options"] == options | {"dimensions": 8}
    ((_, _, size, *_),) = cells(page.locator(".vectors"))[:1]
    assert size == "8"


@pytest.mark.parametrize(("model", "task"), [(BGE_M3, "Score"), (GLINER, "Extract")])
def test_an_adapter_is_sent_with_each_task(page, tab, model, task):
    choose(page, model, task)
    page.get_by_label("LoRA adapter").fill("no-such")
    page.get_by_role("button", name=task).click()
    expect(page.get_by_role("alert")).to_have_text(re.compile(r"lora.* \(400\)$"))
    expect_refusal(tab, 400)


def test_the_curl_command_gives_the_answer_of_the_page(page, service, tmp_path):
    for model, task, fields, body in REQUESTS:
        choose(page, model, task)
        for label, text in fields.items():
            page.get_by_label(re.compile(f"^{label}(,|$)")).fill(text)
        with page.expect_response("**/v1/*/**") as response:
            run(page, task)
        expected = answer(service, task.lower(), model, body)
        assert without_times(response.value.text()) == expected
        assert curled(page, tmp_path) == expected


def test_the_command_is_copied(browser, service):
    with tab_of(browser, permissions=["clipboard-read", "clipboard-write"]) as tab:
        tab.page.goto(service.url)
        tab.page.get_by_role("button", name="Copy").click()
        expect(tab.page.get_by_role("button", name="Copied")).to_be_visible()
        copied = tab.page.evaluate("navigator.clipboard.readText()")
        assert copied == tab.page.locator("#curl").inner_text() != ""


# Model, task, a field with its value, and the message.
REFUSED = [
    (TINY, "Encode", "Texts", " \n ", "nothing to encode"),
    (TINY, "Encode", "Texts", "a\n" * 65, "65 lines: the playground sends at most 64"),
    (TINY, "Encode", "Texts", "ä" * 50_000, "takes 101 kB: the playground sends at most 100 kB"),
    (BGE_M3, "Score", "Query", " ", "Query: write what"),
    (GLINER, "Extract", "Labels", "x, " * 50_000, "the playground sends at most 100 kB"),
]


def test_the_page_refuses_what_it_does_not_send(page, tab):
    for model, task, label, text, message in REFUSED:
        choose(page, model, task)
        page.get_by_label(re.compile(f"^{label}(,|$)")).fill(text)
        expect(page.locator("#curl")).to_be_empty()
        page.get_by_role("button", name=task).click()
        expect(page.get_by_role("alert")).to_contain_text(message)
    assert [url for url in tab.urls if "/v1/models" not in url and "/v1/" in url] == []


def test_files_of_other_kinds_are_refused(page, tmp_path):
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    choose(page, CLIP, "Encode")
    page.get_by_label("File").set_input_files(tmp_path / "a.pdf")
    page.get_by_role("button", name="Encode").click()
    expect(page.get_by_role("alert")).to_have_text("a.pdf: the model does not take this kind of file.")


def test_an_error_of_the_server_is_shown_in_words(page, tab):
    choose(page, GLINER, "Extract")
    page.get_by_label("Labels").fill("")
    page.get_by_role("button", name="Extract").click()
    expect(page.get_by_role("alert")).to_have_text(re.compile(r"^\S*labels.* \(400\)$"))
    expect_refusal(tab, 400)


def test_texts_stay_texts_in_results(page):
    choose(page, TINY, "Encode")
    for text in NASTY:
        page.get_by_label("Texts").fill(text)
        run(page, "Encode")
        assert [line[0] for line in cells(page.locator(".vectors"))] == [text]


FOCUSED = """() => {
  const node = document.activeElement, { outlineStyle, outlineWidth } = getComputedStyle(node);
  return { name: node.id || node.name || node.textContent, isSeen: outlineStyle !== "none" && outlineWidth !== "0px" };
}"""


def test_everything_is_usable_by_keyboard(page):
    choose(page, TINY, "Encode")

    def tab_to(name: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            focused = page.evaluate(FOCUSED)
            assert focused["isSeen"], focused
            if focused["name"] == name:
                return
        pytest.fail(f"Tab does not reach {name}")

    page.get_by_role("link", name="Playground").focus()
    page.keyboard.press("Enter")
    tab_to("model")
    page.keyboard.type(BGE_M3)
    tab_to("task")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="Score")).to_be_checked()
    for name, text in (("query", "climbs"), ("documents", "roses climb")):
        tab_to(name)
        page.keyboard.press("Control+A")
        page.keyboard.type(text)
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("cell", name="roses climb")).to_be_visible()
    page.keyboard.press("End")
    page.keyboard.type(" walls")
    tab_to("run")
    page.keyboard.press("Enter")
    expect(page.get_by_role("cell", name="roses climb walls")).to_be_visible()
    tab_to("Response")
    page.keyboard.press("Enter")
    expect(page.locator("details pre")).to_contain_text('"scores":')
    tab_to("copy")
