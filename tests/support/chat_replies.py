"""What a stand-in for vLLM replies at OpenAI's routes for generation: the words of the request, as often as asked."""

import json
import select
import socket
import threading
from collections.abc import Iterator
from typing import Any

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"

Asked = dict[str, Any]


def reply(path: str, asked: Asked) -> Asked | None:
    """Return the whole reply; None for another path."""
    shared = {"id": "reply-1", "model": asked["model"], "created": 0}
    usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    if path == CHAT:
        choice = {"index": 0, "message": {"role": "assistant", "content": _text(asked)}, "finish_reason": "stop"}
        return {**shared, "object": "chat.completion", "choices": [choice], "usage": usage}
    if path == COMPLETIONS:
        choice = {"index": 0, "text": _text(asked), "finish_reason": "stop", "logprobs": None}
        return {**shared, "object": "text_completion", "choices": [choice], "usage": usage}
    if path == RESPONSES:
        content = [{"type": "output_text", "text": _text(asked), "annotations": []}]
        message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}
        more = {"status": "completed", "parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
        return {**shared, "object": "response", "created_at": 0, "output": [message], **more}
    return None


def events(path: str, asked: Asked) -> Iterator[bytes]:
    """Yield the events of a streamed reply, one a word."""
    for word in _words(asked):
        if path == RESPONSES:
            event = {"type": "response.output_text.delta", "delta": word, "item_id": "m", "output_index": 0}
            yield f"event: {event['type']}\n".encode() + _data({**event, "content_index": 0, "sequence_number": 0})
        else:
            kind = "chat.completion.chunk" if path == CHAT else "text_completion"
            part = {"delta": {"content": word}} if path == CHAT else {"text": word, "logprobs": None}
            choice = {"index": 0, **part, "finish_reason": None}
            shared = {"id": "reply-1", "model": asked["model"], "created": 0}
            yield _data({**shared, "object": kind, "choices": [choice]})
    yield b"data: [DONE]\n\n"


class Stream:
    """How a stand-in streams. It waits after the first event until `may_go_on`.

    `was_left`: the caller closed the connection meanwhile; `is_blocked`: it takes no more bytes for now; `has_ended`:
    it has got all events.
    """

    def __init__(self) -> None:
        self.may_go_on, self.was_left = threading.Event(), threading.Event()
        self.is_blocked, self.has_ended = threading.Event(), threading.Event()
        self.may_go_on.set()

    def send(self, connection: socket.socket, parts: Iterator[bytes], is_cut: bool) -> None:
        try:
            self._send(connection, parts, is_cut)
        except OSError:
            self.was_left.set()

    def _send(self, connection: socket.socket, parts: Iterator[bytes], is_cut: bool) -> None:
        for number, part in enumerate(parts):
            if number and is_cut:
                connection.sendall(f"{len(part):x}\r\n".encode() + part[: len(part) // 2])
                return
            if number and not self._goes_on(connection):
                return
            while not select.select([], [connection], [], 1.0)[1]:
                self.is_blocked.set()
            connection.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
        self.has_ended.set()

    def _goes_on(self, connection: socket.socket) -> bool:
        """Wait until the stream may go on; False if the caller leaves first."""
        while not self.may_go_on.wait(0.02):
            if select.select([connection], [], [], 0)[0] and not connection.recv(1, socket.MSG_PEEK):
                self.was_left.set()
                return False
        return True


def _data(event: Asked) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def _words(asked: Asked) -> list[str]:
    given = asked.get("prompt") or asked.get("input") or asked["messages"][-1]["content"]
    return [f"{word} " for word in given.split()] * asked.get("max_tokens", 1)


def _text(asked: Asked) -> str:
    return "".join(_words(asked)).strip()
