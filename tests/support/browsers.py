"""A real Chromium, as Debian's package `chromium` installs it, and a tab that records what went wrong in it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")

# Waits end when their condition holds; this bounds a failure.
TIMEOUT_MS = 60_000


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def browsing(chromium: str) -> Iterator[Browser]:
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A tab of its own session. `errors` are its console's errors and its exceptions, `urls` those it has requested."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.urls: list[str] = []
        page.on("console", lambda line: self.errors.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.urls.append(request.url))

    def origins(self) -> set[str]:
        return {f"{parts.scheme}://{parts.netloc}" for parts in map(urlsplit, self.urls)}

    def num_asked(self, path: str) -> int:
        return sum(urlsplit(url).path == path for url in self.urls)


@contextmanager
def tab_of(browser: Browser, **options: Any) -> Iterator[Tab]:
    context = browser.new_context(**options)
    context.set_default_timeout(TIMEOUT_MS)
    tab = Tab(context.new_page())
    try:
        yield tab
    finally:
        tab.page.unroute_all(behavior="ignoreErrors")
        context.close()


# Contrast of each visible text with what is painted behind it, by its first words: WCAG 2.
CONTRASTS = """() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const paint = canvas.getContext("2d", { willReadFrequently: true });
  const painted = (colors) => {
    for (const color of colors) { paint.fillStyle = color; paint.fillRect(0, 0, 1, 1); }
    const channels = [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3).map((value) => value / 255);
    const [r, g, b] = channels.map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => node ? [...behind(node.parentElement), getComputedStyle(node).backgroundColor] : [];
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = {};
  while (words.nextNode()) {
    const node = words.currentNode.parentElement, text = words.currentNode.textContent.trim();
    if (!text || !node.checkVisibility() || node.closest("script, noscript, option, optgroup")) continue;
    const [a, b] = [painted(behind(node)), painted([...behind(node), getComputedStyle(node).color])];
    found[text.slice(0, 30)] = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }
  return found;
}"""
