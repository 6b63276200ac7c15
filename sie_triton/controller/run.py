"""`sie-triton controller`: one controller, served until it is told to stop."""

import logging
import os

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from sie_triton.controller.api import application
from sie_triton.controller.loop import Controller, lock
from sie_triton.controller.model_control import ModelControl
from sie_triton.controller.token import admin_token
from sie_triton.settings import CONTROL_TOKEN, Settings, words


def is_not_the_clients_fault(record: logging.LogRecord) -> bool:
    """A request that is no HTTP is answered with 400; a traceback for each would let anybody fill the disk."""
    return not (record.exc_info and isinstance(record.exc_info[1], BadHttpMessage))


def run(settings: Settings) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.server").addFilter(is_not_the_clients_fault)
    held = lock(settings.status_dir)
    control = ModelControl(f"{settings.inner_host}:{settings.grpc_port}", os.environ.get(CONTROL_TOKEN, ""))
    readers = words(settings.auth_tokens) if settings.asks_for_token else ()
    app = application(Controller(settings, control), admin_token(settings.data_dir, settings.admin_token), readers)
    try:
        web.run_app(app, host=settings.inner_host, port=settings.controller_port, print=lambda _: None)
    finally:
        control.close()
        held.close()
