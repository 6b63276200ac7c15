"""Actions on the page, and their results."""

import json
import os
import subprocess
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.browsers import Tab, find_chromium
from tests.support.page_service import BGE_M3, CLIP, GLINER, Service

CHROMIUM = find_chromium()
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH: apt-get install chromium")

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


def answer(service: Service, task: str, model: str, body: dict) -> dict:
    """Return the API's response to a request."""
    response = httpx.post(f"{service.url}/v1/{task}/{model}", json=body, timeout=60)
    return without_times(response.raise_for_status().text)


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


def curled(page: Page, directory: Path, **environment: str) -> dict:
    """Return what the page's command prints in bash."""
    command = page.locator("#curl").inner_text()
    done = subprocess.run(
        ["bash", "-c", command], cwd=directory, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return without_times(done.stdout)
