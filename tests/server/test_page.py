"""The status page and its playground, in a real Chromium before a real server."""

import base64
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.conftest import tiny_model_file
from tests.server.conftest import opened
from tests.support import one_thread  # noqa: F401
from tests.support.browsers import CONTRASTS, Tab, browsing, find_chromium, tab_of
from tests.support.page_service import BGE_M3, CLIP, GLINER, Service, save_models
from tests.support.pictures import pictures

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH: apt-get install chromium")

TINY, BROKEN = "my/tiny", "my/broken"
MODELS = [TINY, BROKEN, BGE_M3, GLINER, CLIP]

# Texts that a shell, JSON or HTML would change if one of them was not quoted.
NASTY = [
    'it\'s $HOME `id` $(id) \\n %s "x" !!',
    "<img src=x onerror=alert(1)> & <b>bold</b>",
    "schöne 🌿 \\u0041 '\\''",
]

# Chromium itself logs each response with an error status, and each server that it cannot reach.
LOGGED_BY_CHROMIUM = "Failed to load resource: "


def without_times(text: str) -> dict:
    return {name: value for name, value in json.loads(text).items() if name != "timing"}


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, tiny_directory: Path, minilm_directory: Path
) -> Iterator[Service]:
    root = tmp_path_factory.mktemp("page")
    save_models(root, minilm_directory)
    (root / "models" / "tiny.yaml").write_text(tiny_model_file(TINY, tiny_directory))
    (root / "models" / "broken.yaml").write_text(tiny_model_file(BROKEN, root / "nowhere"))
    service = Service(root, MODELS)
    service.start()
    yield service
    service.stop()


def answer(service: Service, task: str, model: str, body: dict) -> dict:
    """Return the API's response to a request."""
    response = httpx.post(f"{service.url}/v1/{task}/{model}", json=body, timeout=60)
    return without_times(response.raise_for_status().text)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None
    with browsing(CHROMIUM) as browser:
        yield browser


@pytest.fixture
def tab(browser: Browser, service: Service) -> Iterator[Tab]:
    """Tab with the page, in which nothing goes wrong and no other server is asked."""
    with tab_of(browser) as tab:
        tab.page.goto(service.url)
        yield tab
        assert tab.errors == []
        assert tab.origins() == {service.url}


@pytest.fixture
def page(tab: Tab) -> Page:
    expect(tab.page.locator("#main")).to_be_visible()
    return tab.page


def row(page: Page, model: str) -> Locator:
    return page.locator("#models tbody tr", has=page.get_by_role("rowheader", name=model))


def cells(table: Locator) -> list[list[str]]:
    return [line.locator("th, td").all_inner_texts() for line in table.locator("tbody tr").all()]


def choose(page: Page, model: str, task: str) -> None:
    page.get_by_label("Model", exact=True).select_option(model)
    page.get_by_role("radio", name=task).check()


def run(page: Page, task: str) -> None:
    page.get_by_role("button", name=task).click()
    expect(page.locator("#done")).not_to_be_empty()


def expect_refusal(tab: Tab, status: int) -> None:
    """Check that Chromium has logged responses with this status, and nothing else."""
    assert [error for error in tab.errors if not error.startswith(LOGGED_BY_CHROMIUM)] == []
    assert [error for error in tab.errors if f"status of {status}" in error]
    tab.errors.clear()


def test_the_page_shows_the_server_and_its_models(page, service):
    told = httpx.get(f"{service.url}/status").json()
    expect(page.locator("#ready")).to_have_text("ready")
    expect(page.locator("#server")).to_contain_text(f"version {told['server']['version']} · up ")
    expect(page.locator("#memory-used")).to_have_text(re.compile(r"^[\d.]+ .iB$"))
    limit = f"{told['memory']['limit_bytes'] / 2**30:.1f} GiB"
    expect(page.locator("#memory-parts")).to_have_text(re.compile(rf"^\d+ % of {limit} \(.+\), evicts above 85 %$"))
    expect(page.locator("#memory-bar")).to_have_attribute("aria-valuenow", re.compile(r"^\d+$"))
    named = [line[0].partition("\n")[0] for line in cells(page.locator("#models"))]  # a failed model says why below
    assert sorted(named) == sorted(MODELS)
    offered = page.locator("#model optgroup[label=Served] option").all_inner_texts()
    assert [name for name in offered if ":" not in name] == sorted(MODELS)
    known = page.locator("#model optgroup[label^=Known] option")
    expect(known.filter(has_text="BAAI/bge-small-en-v1.5")).to_have_count(1)


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


@pytest.mark.parametrize(
    ("output", "size"), [("sparse", r"^\d+ of 30,522$"), ("multivector", r"^3 × 32$"), ("dense", "^64$")]
)
def test_each_output_of_a_model_can_be_chosen(page, output, size):
    choose(page, BGE_M3, "Encode")
    page.get_by_label("Texts").fill("one two")
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


def curled(page: Page, directory: Path, **environment: str) -> dict:
    """Return what the page's command prints in bash."""
    command = page.locator("#curl").inner_text()
    done = subprocess.run(
        ["bash", "-c", command], cwd=directory, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return without_times(done.stdout)


@pytest.mark.parametrize(
    ("model", "task", "fields", "body"),
    [
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
    ],
    ids=["encode", "score", "extract"],
)
def test_the_curl_command_gives_the_answer_of_the_page(page, service, tmp_path, model, task, fields, body):
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


@pytest.mark.parametrize(
    ("model", "task", "label", "text", "message"),
    [
        (TINY, "Encode", "Texts", " \n ", "nothing to encode"),
        (TINY, "Encode", "Texts", "a\n" * 65, "65 lines: the playground sends at most 64"),
        (TINY, "Encode", "Texts", "ä" * 50_000, "takes 101 kB: the playground sends at most 100 kB"),
        (BGE_M3, "Score", "Query", " ", "Query: write what"),
        (GLINER, "Extract", "Labels", "x, " * 50_000, "the playground sends at most 100 kB"),
    ],
    ids=["nothing", "lines", "bytes", "query", "labels"],
)
def test_the_page_refuses_what_it_does_not_send(page, tab, model, task, label, text, message):
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


def test_a_model_that_fails_says_why(page, tab):
    choose(page, BROKEN, "Encode")
    page.get_by_role("button", name="Encode").click()
    expect(page.get_by_role("alert")).to_contain_text("nowhere")
    expect(row(page, BROKEN).locator(".state")).to_have_text("failed")
    expect(row(page, BROKEN)).to_contain_text("not found")
    expect_refusal(tab, 502)


def test_an_evicted_model_is_cold_until_a_request_loads_it(page, service):
    choose(page, TINY, "Encode")
    run(page, "Encode")
    state, memory = row(page, TINY).locator(".state"), row(page, TINY).locator("td[data-label=Memory]")
    expect(state).to_have_text("loaded")
    expect(memory).to_contain_text("MiB")
    service.evict(TINY)
    expect(state).to_have_text("cold")
    expect(memory).to_have_text("–")
    run(page, "Encode")
    assert cells(page.locator(".vectors"))
    expect(state).to_have_text("loaded")


def test_the_page_recovers_from_a_restart_of_the_server(page, tab, service):
    choose(page, TINY, "Encode")
    service.stop()
    expect(page.locator("#notice")).to_have_text("The server is unreachable; retrying.")
    expect(page.locator("#ready")).to_have_text("unreachable")
    page.get_by_role("button", name="Encode").click()
    expect(page.get_by_role("alert")).to_have_text("The server is unreachable")
    service.start()
    expect(page.locator("#notice")).to_be_empty()
    expect(page.locator("#ready")).to_have_text("ready")
    expect(row(page, TINY).locator(".state")).to_have_text("cold")
    run(page, "Encode")
    expect(row(page, TINY).locator(".state")).to_have_text("loaded")
    assert tab.errors
    assert all(error.startswith(LOGGED_BY_CHROMIUM) for error in tab.errors)
    tab.errors.clear()


def test_the_page_asks_for_the_token_and_sends_it(browser, service, tmp_path):
    tokens = {"auth_mode": "token", "auth_tokens": "s3cret/token"}
    with opened(service.settings, **tokens) as url, tab_of(browser) as tab:
        page = tab.page
        page.goto(url)
        expect(page.get_by_label("Token")).to_be_focused()
        expect(page.locator("#main")).to_be_hidden()
        for wrong, message in (("wrong", "does not accept this token"), ("wrong 🌿", "visible characters of ASCII")):
            page.get_by_label("Token").fill(wrong)
            page.keyboard.press("Enter")
            expect(page.get_by_role("alert")).to_contain_text(message)
        page.reload()
        expect(page.get_by_label("Token")).to_be_focused()
        expect(page.locator("#login-error")).to_be_empty()  # the wrong token is forgotten
        page.get_by_label("Token").fill("s3cret/token")
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_visible()
        choose(page, TINY, "Encode")
        page.get_by_label("Texts").fill("one")
        run(page, "Encode")
        assert "s3cret" not in page.content()
        expected = answer(service, "encode", TINY, {"items": ["one"]})
        assert curled(page, tmp_path, SIE_TOKEN="s3cret/token") == expected
        page.reload()
        expect(page.locator("#main")).to_be_visible()  # sessionStorage has the token
        page.get_by_role("button", name="Forget the token").click()
        expect(page.get_by_label("Token")).to_be_focused()
        expect(page.locator("#login-error")).to_be_empty()
        page.reload()
        expect(page.get_by_label("Token")).to_be_visible()
        expect_refusal(tab, 401)


HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def test_names_and_messages_are_text(page, service):
    def renamed(route):
        response = route.fetch()
        told = response.json()
        told["models"][0] |= {"name": HOSTILE, "state": "failed", "last_error": {"message": HOSTILE}}
        route.fulfill(response=response, json=told)

    def refused(route):
        route.fulfill(
            json={"model": "m", "items": [{"id": HOSTILE, "data": {"a": HOSTILE}}], "timing": {"total_ms": 1}}
        )

    page.route(re.compile("/status$|/v1/models$"), renamed)
    page.route("**/v1/encode/**", refused)
    page.reload()
    expect(row(page, HOSTILE).locator(".error")).to_have_text(HOSTILE)
    expect(page.locator("#model option", has_text=HOSTILE)).to_have_count(1)
    choose(page, HOSTILE, page.get_by_role("radio").first.get_attribute("value").title())
    run(page, "Encode")
    assert page.locator("img, main script").count() == 0
    assert page.title() == "SIE on Triton"


@pytest.mark.parametrize("text", NASTY)
def test_texts_stay_texts_in_results(page, text):
    choose(page, TINY, "Encode")
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


WORK = [(BGE_M3, "Encode"), (BGE_M3, "Score"), (GLINER, "Extract"), (CLIP, "Encode")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 375, 1280])
def test_the_page_fits_and_is_legible(browser, service, width, scheme):
    with tab_of(browser, viewport={"width": width, "height": 800}, color_scheme=scheme) as tab:
        page = tab.page
        page.goto(service.url)
        expect(page.locator("#main")).to_be_visible()
        for model, task in WORK:
            choose(page, model, task)
            run(page, task)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            contrasts = page.evaluate(CONTRASTS)
            assert len(contrasts) > 20
            assert {text: ratio for text, ratio in contrasts.items() if ratio < 4.5} == {}
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground))) < 3 * 128) == (scheme == "dark")
        assert tab.errors == []


def traffic_of(number: int) -> dict:
    counts = {"requests": 30 * number, "errors": number, "items": 90 * number, "loads": 2, "evictions": 1}
    return {**counts, "p50_ms": 4.25, "p99_ms": 1234.0}


def test_traffic_is_shown_where_the_status_has_it(page):
    seen = []

    def with_traffic(route):
        response = route.fetch()
        told, number = response.json(), len(seen)
        for model in told["models"]:
            model.pop("traffic", None)
        told["models"][0]["traffic"] = traffic_of(number)
        told["timestamp"] = 1000.0 + 2 * number
        seen.append(number)
        route.fulfill(response=response, json=told)

    page.route("**/status", with_traffic)
    model, other = sorted(MODELS)[:2]
    expect(row(page, model).locator("td[data-label='Requests/s']")).to_have_text("15")
    shown = {
        label: row(page, model).locator(f"td[data-label={label}]").inner_text()
        for label in ("p50", "p99", "Loads", "Evictions")
    }
    assert shown == {"p50": "4.3 ms", "p99": "1.2 s", "Loads": "2", "Evictions": "1"}
    for label in ("Requests/s", "p50", "p99", "Errors", "Loads", "Evictions"):
        expect(row(page, other).locator(f"td[data-label='{label}']")).to_have_text("–")
    expect(page.locator("#rate")).to_have_text("15")
    expect(page.locator("#requests")).to_have_text(re.compile(r"^\d+ since start, \d+ errors?$"))
    expect(page.locator("#changes")).to_have_text("2 loads, 1 eviction since start")
    expect(page.locator("#rate-line path")).to_have_attribute("d", re.compile(r"^M.*L"))


def test_the_playground_works_without_a_controller(page):
    def unknown(route):
        response = route.fetch()
        route.fulfill(response=response, json={**response.json(), "models": [], "memory": {}})

    page.route("**/status", unknown)
    expect(page.locator("#no-models")).to_be_visible()
    expect(page.locator("#memory-parts")).to_have_text("the controller does not answer")
    expect(page.locator("#memory-bar")).to_be_hidden()
    choose(page, TINY, "Encode")
    run(page, "Encode")


def test_a_hidden_tab_asks_nothing(page, tab):
    show = "hidden => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
    show += " document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(show, True)
    page.wait_for_timeout(1500)  # a question in flight may end
    before = tab.num_asked("/status")
    page.wait_for_timeout(3000)
    assert tab.num_asked("/status") == before
    with page.expect_response("**/status"):
        page.evaluate(show, False)


def test_one_question_is_in_flight_at_a_time(page, tab):
    held = []
    page.route("**/status", lambda route: held.append(route))
    while not held:
        page.wait_for_timeout(50)
    page.wait_for_timeout(3000)
    assert len(held) == 1
    with page.expect_response("**/status"):
        held[0].continue_()
