"""Calls of one client of SIE's SDK, each a line of JSON on standard input; run by a Python that has the SDK.

A call is answered by a line with its result or its error. Before the SDK waits, a line names the server's last error
code and the seconds, and the SDK goes on after the next line of input: no test depends on how long it waits.
"""

import asyncio
import base64
import inspect
import json
import logging
import sys
import time
from types import SimpleNamespace

import numpy as np
from sie_sdk import SIEAsyncClient, SIEClient, SIEError
from sie_sdk.client import async_, sync

URL, API_KEY, HEADERS = sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
heard = []
last = {"code": None}


class Heard(logging.Handler):
    def emit(self, record):
        heard.append(record.getMessage())


def plain(value):
    return {"dtype": str(value.dtype), "values": value.tolist()} if isinstance(value, np.ndarray) else value.item()


def say(**event):
    print(json.dumps(event, default=plain), flush=True)


def with_bytes(found):
    return base64.b64decode(found["base64"]) if found.keys() == {"base64"} else found


def calls():
    for line in sys.stdin:
        yield json.loads(line, object_hook=with_bytes)


def pause(seconds):
    say(waits=seconds, code=last["code"])
    sys.stdin.readline()


def noting(get_code):
    def noted(response):
        last["code"] = get_code(response)
        return last["code"]

    return noted


def fields(error):
    told = {name: getattr(error, name, None) for name in ("code", "error_class", "permanent")}
    return {"kind": type(error).__name__, "message": str(error), **told}


def patch(module, **names):
    for name, value in names.items():
        setattr(module, name, value)


def run():
    patch(sync, time=SimpleNamespace(**{**vars(time), "sleep": pause}), get_error_code=noting(sync.get_error_code))
    with SIEClient(URL, api_key=API_KEY) as client:
        client._client.headers.update(HEADERS)
        for call in calls():
            try:
                found = heard if call["name"] == "heard" else getattr(client, call["name"])
                result = found(*call["arguments"], **call["options"]) if callable(found) else found
                say(result=next(result) if inspect.isgenerator(result) else result)
            except SIEError as exc:
                say(error=fields(exc))


async def run_async():
    caller = asyncio.current_task()

    async def sleep(seconds):
        if asyncio.current_task() is not caller:  # a lease, which is renewed in the background
            await asyncio.sleep(seconds)
        else:
            pause(seconds)

    names = {**vars(asyncio), "sleep": sleep}
    patch(async_, asyncio=SimpleNamespace(**names), get_error_code=noting(async_.get_error_code))
    async with SIEAsyncClient(URL, api_key=API_KEY) as client:
        client._headers.update(HEADERS)
        for call in calls():
            try:
                found = heard if call["name"] == "heard" else getattr(client, call["name"])
                result = found(*call["arguments"], **call["options"]) if callable(found) else found
                if inspect.isasyncgen(result):
                    said, watched = await anext(result), result
                    await watched.aclose()
                    result = said
                say(result=await result if inspect.isawaitable(result) else result)
            except SIEError as exc:
                say(error=fields(exc))


logging.captureWarnings(True)
logging.getLogger().addHandler(Heard())
asyncio.run(run_async()) if sys.argv[1] == "async" else run()
