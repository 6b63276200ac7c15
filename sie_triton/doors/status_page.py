"""The status page at `/`: static files without data, whose scripts ask routes that need the token."""

from importlib.metadata import version
from pathlib import Path

from starlette.responses import Response
from starlette.routing import Route

from sie_triton.doors.endpoint import Answer, Door, DoorEndpoint, DoorRequest

FOLDER = Path(__file__).parent / "page"

INDEX = "index.html"

HTML = "text/html"
MEDIA_TYPES = {".html": HTML, ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

# The page loads and asks this server alone, stands in no frame of another page, and never turns text into markup.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
BY_ACCEPT = {"Vary": "Accept"}


def routes(door: Door) -> list[Route]:
    page = PageFile(FOLDER / INDEX)
    files = [PageFile(path) for path in sorted(FOLDER.iterdir()) if path.name != INDEX]
    return [
        _open(door, "/", Root(page)),
        *(_open(door, f"/page/{file.name}", file) for file in files),
    ]


def _open(door: Door, path: str, handler: "PageFile | Root") -> Route:
    return Route(path, DoorEndpoint(door, handler, is_open=True), methods=["GET"], name=path.strip("/") or "root")


class PageFile:
    """Handler that answers with one file of the page."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._content = path.read_bytes()
        self._media_type = MEDIA_TYPES[path.suffix]

    async def __call__(self, request: DoorRequest) -> Response:
        return Response(self._content, media_type=self._media_type, headers=HEADERS)


class Root:
    """Handler of `/`: the page for browsers, else JSON."""

    def __init__(self, page: PageFile) -> None:
        self._page = page

    async def __call__(self, request: DoorRequest) -> Response | Answer:
        if not prefers_html(request.header("accept") or ""):
            return request.answer({"name": "sie-triton", "version": version("sie-triton"), "docs": "/docs"}, BY_ACCEPT)
        response = await self._page(request)
        response.headers.update(BY_ACCEPT)
        return response


def prefers_html(accept: str) -> bool:
    """Return True if an Accept header names HTML first, as that of a browser does.

    >>> prefers_html("text/html,application/xml;q=0.9,*/*;q=0.8"), prefers_html("*/*"), prefers_html("")
    (True, False, False)
    """
    return accept.partition(",")[0].strip().lower() == HTML
