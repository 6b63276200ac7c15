"""Changes of model files by the config service's HTTP."""

from tests.process.cluster.conftest import model_file

A, B = model_file("t/a"), model_file("t/b")
MODELS = "/v1/configs/models"


async def posted(client, text: bytes, **more) -> tuple[int, int]:
    """Return HTTP's status and the epoch of a change."""
    answer = await client.post(MODELS, data=text, **more)
    told = await answer.json()
    assert answer.status < 400, told
    return answer.status, told["epoch"]


async def refused(client, method: str, path: str, **more) -> tuple[int, str]:
    answer = await client.request(method, path, **more)
    return answer.status, (await answer.json())["message"]
