"""A chat through `serve`, by the `openai` package: the door forwards it to a stand-in for vLLM."""

import openai
import pytest

from sie_triton.controller.commands import ask
from tests.server.sdk.conftest import CHAT, DENSE


def test_a_chat_is_forwarded_and_triton_knows_no_such_model(served):
    messages = [{"role": "user", "content": "roses climb up"}]
    with openai.OpenAI(base_url=f"{served.door}/v1", api_key="none", max_retries=0) as client:
        pieces = list(client.chat.completions.create(model=CHAT, messages=messages, stream=True))
        assert "".join(piece.choices[0].delta.content for piece in pieces) == "roses climb up "
        assert served.endpoint.headers["Authorization"] == "Bearer secret"
        assert {CHAT, DENSE} <= {model.id for model in client.models.list()}
        with pytest.raises(openai.BadRequestError, match="generates text"):
            client.embeddings.create(model=CHAT, input="roses")
        with pytest.raises(openai.BadRequestError, match=f"{DENSE} does not generate text"):
            client.chat.completions.create(model=DENSE, messages=messages)
    found = ask(served.settings, "/v1/models")
    assert list(found["forwarded"]) == [CHAT]
    assert CHAT not in {each["model"] for each in found["models"]}
