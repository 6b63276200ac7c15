"""A client has the controller serve a known model; the controller is a real HTTP server that answers as told."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from benchmarks.ports import free_ports
from sie_triton.client import known
from sie_triton.client.address import Address
from sie_triton.client.failures import NotServed
from sie_triton.client.known import ControllerAddress, serve_known
from sie_triton.client.limits import ClientLimits
from sie_triton.errors import InputError, ModelLoading
from tests.support.http_servers import Told, answering


class Controller:
    """A controller that answers every request with `status` and `text`, once `may_answer` is set."""

    def __init__(self) -> None:
        self.status, self.text = 200, '{"model": "org/größe", "done": "served"}'
        self.scheme, self.target = "Basic", ""
        self.asked: list[tuple[str, str, str | None]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def answer(self, request: BaseHTTPRequestHandler) -> Told:
        self.asked.append((request.command, request.path, request.headers.get("Authorization")))
        self.may_answer.wait(60)
        return self.status, {"WWW-Authenticate": self.scheme} if self.status == 401 else {}, self.text.encode()


@pytest.fixture
def controller() -> Iterator[Controller]:
    made = Controller()
    with answering(made.answer) as port:
        made.target = f"127.0.0.1:{port}"
        yield made
        made.may_answer.set()


def test_a_served_model_ends_the_wait(controller):
    assert serve_known(ControllerAddress(controller.target), "org/größe")
    assert serve_known(ControllerAddress(controller.target), "org__größe")
    controller.text = '{"model": "a", "done": "served"}'
    assert serve_known(ControllerAddress(controller.target, "secret"), "a")
    assert controller.asked == [
        ("PUT", "/v1/models/org__gr%C3%B6%C3%9Fe", None),
        ("PUT", "/v1/models/org__gr%C3%B6%C3%9Fe", None),
        ("PUT", "/v1/models/a", "Bearer secret"),
    ]


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [(404, NotServed, "model: org/a is not served"), (503, ModelLoading, "org/a is not served")],
)
def test_a_refusal_is_an_error_with_the_controllers_reason(controller, status, error, message):
    controller.status, controller.text = status, "org/a is not served\n"
    with pytest.raises(error) as refused:
        serve_known(ControllerAddress(controller.target), "org/a")
    assert str(refused.value) == message


def test_a_controller_that_requires_a_token_is_named_with_the_command_to_run(controller):
    controller.status, controller.text, controller.scheme = 401, "the bearer token is missing or wrong", "Bearer"
    with pytest.raises(
        NotServed, match=rf"org/a is not served, and {controller.target} .* sie-triton models add org/a$"
    ):
        serve_known(ControllerAddress(controller.target), "org/a")


@pytest.mark.parametrize("status", [200, 401, 404, 405, 500, 502, 503])
def test_another_answer_leaves_tritons_own_as_it_is(controller, status):
    """Also that of another program at the controller's port, which does not name the model."""
    controller.status, controller.text = status, "<h1>Welcome</h1>"
    assert not serve_known(ControllerAddress(controller.target), "org/a")


def test_without_a_controller_tritons_answer_stands():
    assert not serve_known(ControllerAddress(f"127.0.0.1:{free_ports(1)[0]}"), "org/a")


def test_a_port_that_does_not_connect_is_given_up_before_the_deadline(monkeypatch):
    """A firewall drops what is sent to it, so only the timeout of connecting ends the attempt."""
    timeouts = []

    def connect(connection):
        timeouts.append(connection.timeout)
        raise TimeoutError

    monkeypatch.setattr(known.HTTPConnection, "connect", connect)
    assert not serve_known(ControllerAddress("host:8003"), "org/a", 600)
    assert timeouts == [ClientLimits.connect_controller_s]


def test_a_wait_ends_with_the_deadline(controller):
    controller.may_answer.clear()
    with pytest.raises(ModelLoading, match=r"org/a was not in service after 0\.05 s; retry"):
        serve_known(ControllerAddress(controller.target), "org/a", 0.05)


@pytest.mark.parametrize(
    ("url", "controller_url", "expected"),
    [
        ("grpc://host:8001", None, "host:8003"),
        ("http://host:8000/triton", None, "host:8003"),
        ("host:8001", "http://other:9", "other:9"),
        ("host:8001", "other:9", "other:9"),
    ],
)
def test_the_controller_is_at_tritons_host_unless_its_url_is_given(url, controller_url, expected):
    controller = ControllerAddress.beside(Address.parse(url), controller_url)
    assert controller is not None
    assert controller.target == expected
    assert expected in controller.advice
    assert "controller_url" in controller.advice


def test_an_empty_url_asks_no_controller_and_a_wrong_one_is_refused():
    assert ControllerAddress.beside(Address.parse("host:8001"), "") is None
    with pytest.raises(InputError, match="controller_url: must be http://host:port, not 'grpc://x:1'"):
        ControllerAddress.beside(Address.parse("host:8001"), "grpc://x:1")
