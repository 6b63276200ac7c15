"""The status page, in a real Chromium before a real server."""

import re

import httpx
import pytest
from playwright.sync_api import expect

from tests.server.conftest import opened
from tests.server.page.actions import (
    BROKEN,
    LOGGED_BY_CHROMIUM,
    MODELS,
    NEEDS_CHROMIUM,
    TINY,
    answer,
    cells,
    choose,
    curled,
    expect_refusal,
    row,
    run,
)
from tests.support.browsers import CONTRASTS, tab_of
from tests.support.page_service import BGE_M3, CLIP, GLINER

pytestmark = NEEDS_CHROMIUM


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


WORK = [(BGE_M3, "Encode"), (BGE_M3, "Score"), (GLINER, "Extract"), (CLIP, "Encode")]


@pytest.mark.parametrize("width", [320, 1280])
def test_the_page_fits_and_is_legible(browser, service, width):
    with tab_of(browser, viewport={"width": width, "height": 800}) as tab:
        page = tab.page
        page.goto(service.url)
        expect(page.locator("#main")).to_be_visible()
        for model, task in WORK if width == 320 else WORK[:1]:
            choose(page, model, task)
            run(page, task)
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
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
