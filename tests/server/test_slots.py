"""Preprocessing slots bound the tokenization of all models together; the test holds slots, as two others would."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from benchmarks.texts import texts
from sie_triton import SIEClient
from sie_triton.pipeline.scheduling.preprocess_slots import Slots
from sie_triton.pipeline.stages.preprocess import SLOTS_FILE
from sie_triton.system.host.file_locks import LockFile
from tests.conftest import MINILM, TINY
from tests.support.controller import wait_for


def test_two_models_wait_for_the_same_slots(server):
    """Without a slot no model tokenizes a bulk request; small requests need none."""
    runtime = server.settings.runtime
    num_workers, locks = runtime.preprocessor_workers, LockFile(server.settings.status_dir / SLOTS_FILE)
    slots = Slots(locks, num_workers, 1)
    with SIEClient(server.grpc) as client, ThreadPoolExecutor(2) as pool, ExitStack() as held:
        for each in (*[slots] * num_workers, Slots(locks, num_workers, 1)):
            held.enter_context(each.bulk())
        bulk = [pool.submit(client.encode, model, texts(200), timeout=60) for model in (TINY, MINILM)]
        wait_for(lambda: all(server.status(model, "preprocess")["num_open"] for model in (TINY, MINILM)))
        for model in (TINY, MINILM):
            assert len(client.encode(model, texts(1))) == 1
        assert not any(each.done() for each in bulk)
        held.close()
        assert [len(each.result()) for each in bulk] == [200, 200]
    wait_for(lambda: slots.num_taken == 0)
