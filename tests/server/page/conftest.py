"""A real server, and tabs of a real Chromium with its page."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import tiny_model_file
from tests.server.page.actions import BROKEN, CHROMIUM, MODELS, TINY
from tests.support.browsers import Tab, browsing, tab_of
from tests.support.page_service import Service, save_models


@pytest.fixture(scope="package")
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


@pytest.fixture(scope="package")
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
