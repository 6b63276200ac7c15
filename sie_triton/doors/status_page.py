"""The status page at `/`: static files without data, whose scripts ask routes that need the token."""

from functools import partial
from importlib.metadata import version
from pathlib import Path

from starlette.responses import Response
from starlette.routing import Route

from sie_triton.doors.endpoint import Answer, Door, DoorEndpoint, DoorRequest, get

FOLDER = Path(__file__).parent / "page"

HTML = "text/html"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

# The page loads and asks this server alone, stands in no frame of another page, and never turns text into markup.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
BY_ACCEPT = {"Vary": "Accept"}


def routes(door: Door) -> list[Route]:
    files = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir())}
    root = DoorEndpoint(door, partial(answer_root, files.pop("index.html")), is_open=True)
    pages = {name: DoorEndpoint(door, partial(answer_file, name, files[name]), is_open=True) for name in files}
    return [get("/", root, "root"), *(get(f"/page/{name}", endpoint) for name, endpoint in pages.items())]


async def answer_file(name: str, content: bytes, request: DoorRequest) -> Response:
    return Response(content, media_type=MEDIA_TYPES[Path(name).suffix], headers=HEADERS)


async def answer_root(page: bytes, request: DoorRequest) -> Response | Answer:
    """Answer browsers with the page, and others with JSON."""
    if prefers_html(request.header("accept") or ""):
        return Response(page, media_type=HTML, headers=HEADERS | BY_ACCEPT)
    return request.answer({"name": "sie-triton", "version": version("sie-triton"), "docs": "/docs"}, BY_ACCEPT)


def prefers_html(accept: str) -> bool:
    """Return True if an Accept header names HTML first, as that of a browser does.

    >>> prefers_html("text/html,application/xml;q=0.9,*/*;q=0.8"), prefers_html("*/*"), prefers_html("")
    (True, False, False)
    """
    return accept.partition(",")[0].strip().lower() == HTML
