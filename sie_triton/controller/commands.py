"""Implementation of `sie-triton status`, `load`, `evict`, `models add` and `models rm` by a running controller."""

import json
import ssl
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from rich.console import Group
from rich.live import Live
from rich.text import Text

from sie_triton.controller.status_table import faults, table_of
from sie_triton.controller.token import find_token
from sie_triton.errors import ServerError
from sie_triton.settings import Settings
from sie_triton.settings.secrets import tokens
from sie_triton.system.printing import Console

MODELS = "/v1/models"

# Texts of servers without the path that they were asked for.
NO_PATH = ("", "not found", "404 page not found")

PICTURE_COLUMNS = 100

# Flags and variables of tokens, and where the controller's is if it has generated one.
ADMIN = "--admin-token (SIE_ADMIN_TOKEN)"
CLIENT = "--auth-tokens (SIE_AUTH_TOKENS)"
READING = f"{CLIENT} or {ADMIN}"
OWN_DIRECTORY = ", or run the command as the server's user with its --data-dir, where a generated token is stored"


class NoAnswer(ServerError):
    """No server answers at the address."""


def show(settings: Settings, *, watch: bool = False, as_json: bool = False, picture: Path | None = None) -> None:
    """Print the table or its data as JSON; `watch` keeps the table up to date. `picture` is an SVG file to write."""
    if as_json:
        Console().print_data(_status(settings))
        return
    console = Console(record=picture is not None, width=PICTURE_COLUMNS if picture else None)
    if not watch:
        answer = _status(settings)
        console.print(table_of(answer, console.width))
        kernels = [f"kernels: {answer['kernels']}"] if answer.get("kernels") else []
        for line in (*kernels, *(f"faster: {speedup}" for speedup in answer.get("speedups", []))):
            console.print_line(line)
        for line in faults(answer):
            console.print_line(line, style="red")
        if picture is not None:
            console.save_svg(str(picture), title="sie-triton status")
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            answer = _status(settings)
            below = [Text(line, style="red", overflow="fold") for line in faults(answer)]
            live.update(Group(table_of(answer, console.width), *below), refresh=True)
            time.sleep(0.5)


def _status(settings: Settings) -> Any:
    answer = ask(settings, MODELS)
    if "memory" not in answer:  # a door has the path, too
        raise ServerError(_controller("GET").is_not(_url(settings, MODELS)))
    return answer


def act(settings: Settings, model: str, action: str) -> None:
    done = ask(settings, f"{path_of(model)}/{action}", "POST")
    Console().print(f"{done['model']}: {action} done")


def add(settings: Settings, model_file: str) -> None:
    """Serve the model of `model_file`, given as text; it replaces a model of the same name."""
    done = ask(settings, MODELS, "PUT", model_file.encode())
    Console().print(f"{done['model']}: {done['done']}")


def remove(settings: Settings, model: str) -> None:
    done = ask(settings, path_of(model), "DELETE")
    Console().print(f"{done['model']}: {done['done']}")


def ask(settings: Settings, path: str, method: str = "GET", body: bytes | None = None) -> Any:
    """Return the controller's response, decoded from JSON.

    Raise NoAnswer if no server answers, and ServerError with the reason for any other failure.
    """
    seconds = settings.load_timeout_s + 180  # a load may also wait for memory and for Triton
    return fetch(_url(settings, path), _controller(method), _token(settings, method), seconds, method, body)


def _url(settings: Settings, path: str) -> str:
    return f"http://{settings.inner_host}:{settings.controller_port}{path}"


class Where(NamedTuple):
    """A kind of server, the flags that choose it, those that give its token, and where else the token may be."""

    kind: str
    flags: str
    tokens: str
    advice: str = ""

    def is_not(self, url: str) -> str:
        """Return the error about a server of another kind."""
        return f"the server at {url} is not a {self.kind}; set {self.flags} to the {self.kind}'s"


def _controller(method: str) -> Where:
    tokens = READING if method == "GET" else ADMIN
    return Where("controller", "--host and --controller-port", tokens, OWN_DIRECTORY)


def fetch(
    url: str,
    where: Where,
    token: str,
    seconds: float,
    method: str = "GET",
    body: bytes | None = None,
    tls: ssl.SSLContext | None = None,
) -> Any:
    """Return the response of a server, decoded from JSON; `tls` holds the certificates to trust.

    Raise NoAnswer if no server answers, and ServerError with the reason for any other failure.
    """
    what, flags = where.kind, where.flags
    request = urllib.request.Request(url, data=body, method=method)
    if token:
        request.add_header("Authorization", f"Bearer {token}".encode())  # type: ignore[arg-type]
    try:
        with urllib.request.urlopen(request, timeout=seconds, context=tls) as response:
            return json.load(response)
    except urllib.error.HTTPError as exc:
        if exc.code == HTTPStatus.UNAUTHORIZED:
            given = "does not accept the bearer token" if token else "needs a bearer token"
            raise ServerError(f"the {what} at {url} {given}; give it with {where.tokens}{where.advice}") from exc
        reason = _reason(exc.read().decode(errors="replace").strip())
        raise ServerError(reason or where.is_not(url)) from exc
    except OSError as exc:
        raise NoAnswer(f"no {what} answers at {url}; check that it is running, and set {flags}") from exc
    except (ValueError, HTTPException) as exc:
        raise ServerError(where.is_not(url)) from exc


def _reason(text: str) -> str:
    """Return the message of an error in JSON, or a text; empty if no server of this package answers so.

    >>> _reason('{"message": "too busy"}'), _reason('{"error": "no"}'), _reason("a is not served"), _reason("Not Found")
    ('too busy', '', 'a is not served', '')
    """
    try:
        found = json.loads(text)
        reason = str(found["message"] if "message" in found else found["detail"]["message"])
    except (KeyError, TypeError):
        return ""
    except ValueError:
        reason = text
    return "" if reason.startswith("<") or reason.lower() in NO_PATH else reason


def _token(settings: Settings, method: str) -> str:
    """Return the admin token; if none is known, a GET may use one of auth_tokens."""
    known = find_token(settings.data_dir, settings.admin_token)
    return known or next(iter(tokens(settings.auth_tokens)), "") if method == "GET" else known


def path_of(model: str) -> str:
    return f"{MODELS}/{quote(model.replace('/', '__'), safe='')}"
