"""Cache of the served models' specifications; Triton's answers and the clock are doubles."""

import asyncio
from types import SimpleNamespace

import pytest

from sie_triton.doors import served as module
from sie_triton.doors.backend import States
from sie_triton.doors.served import ServedModels
from sie_triton.settings import Settings
from tests.support.stages import spec


class Backend:
    """Backend of a door that serves one model."""

    is_beside_server = True

    def __init__(self) -> None:
        self.spec = spec(max_sequence_length=128)
        self.num_asked = 0

    async def ask(self, method: str, model_name: str) -> SimpleNamespace:
        steps = [SimpleNamespace(model_name="org__m-preprocess")] if model_name == "org__m" else []
        parameters = {module.SPEC: SimpleNamespace(string_value=self.spec.to_json())}
        config = SimpleNamespace(ensemble_scheduling=SimpleNamespace(step=steps), parameters=parameters)
        return SimpleNamespace(config=config)

    async def states(self) -> States:
        self.num_asked += 1
        return States({"a": f"{self.num_asked}"}, {}, {}, module.monotonic())


@pytest.fixture
def known(monkeypatch):
    """The time, a backend, and what the door knows of it."""
    now, backend = [1000.0], Backend()
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now, backend, ServedModels(Settings(), backend)


def test_a_changed_model_is_read_again_after_half_a_minute(known):
    now, backend, served = known

    async def length() -> int:
        return (await served.spec("org/m")).max_sequence_length

    async def lengths() -> list[int]:
        found = [await length()]
        backend.spec = spec(max_sequence_length=256)
        for now[0] in (1030.0, 1030.1):
            found.append(await length())
        return found

    assert asyncio.run(lengths()) == [128, 128, 256]


def test_a_request_gets_the_old_specification_while_a_new_one_is_read(known):
    now, backend, served = known

    async def length() -> int:
        found = await served.recent("org/m", 5)
        return found.max_sequence_length if found else 0

    async def lengths() -> list[int]:
        found = [await length()]
        backend.spec, now[0] = spec(max_sequence_length=256), 1030.1
        found.append(await length())
        while served._reading:
            await asyncio.sleep(0)
        return [*found, await length()]

    assert asyncio.run(lengths()) == [128, 128, 256]


def test_the_controller_is_asked_once_in_a_fifth_of_a_second(known):
    """Many clients that ask for the state of models at once are one question to the controller."""
    now, _, served = known

    async def answers() -> list[str]:
        found = []
        for now[0] in (1000.0, 1000.1, 1000.3):
            found += [each.unserved["a"] for each in await asyncio.gather(served.states(), served.states())]
        return found

    assert asyncio.run(answers()) == ["1", "1", "1", "1", "2", "2"]
