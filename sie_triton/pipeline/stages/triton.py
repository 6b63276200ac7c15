"""The shell between Triton's Python backend and a stage. No other module imports pb_utils.

The `model.py` of a step imports PreprocessModel, InferenceModel or PostprocessModel as TritonPythonModel.
"""

import atexit
import json
import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Thread
from time import monotonic_ns
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils
from platformdirs import user_cache_path

from sie_triton.contract.error_prefix import with_prefix
from sie_triton.contract.spec import SPEC_PARAMETER, ModelSpec
from sie_triton.errors import BusyError, InputError, ModelError, SIEError
from sie_triton.pipeline.stages.cold_stage import ColdStage
from sie_triton.pipeline.stages.message import Seal
from sie_triton.pipeline.stages.request import Answer, Later, Outputs
from sie_triton.pipeline.stages.shared_memory import AnswerRoom
from sie_triton.records.status import StatusWriter
from sie_triton.system.host.device import instance_devices, unused_gpus
from sie_triton.system.host.private import private_directory, temporary_directory
from sie_triton.system.processes.freed_memory import keep_returning
from sie_triton.system.processes.pids import Process
from sie_triton.system.telemetry.logs import JsonFormatter, PlainFormatter
from sie_triton.system.telemetry.options import OPTIONS
from sie_triton.system.telemetry.spans import spans

log = logging.getLogger(__name__)

ROOM = AnswerRoom()

# An integer, or a few flags.
TINY_BYTES = 4


class TritonRequest:
    """`stages.request.Request` over a pb_utils.InferenceRequest and, once deferred, over its response sender.

    `reply` blocks its caller until there is enough shared memory, and sends BusyError if there is none in time.
    Exceptions of Triton propagate to the caller.
    """

    def __init__(self, request: Any) -> None:
        self._request = request
        self._sender: Any = None
        self.arrived_ns = monotonic_ns()

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        try:
            parameters: Mapping[str, Any] = json.loads(self._request.parameters() or "{}")
        except ValueError as exc:  # not valid UTF-8
            raise InputError.at("parameters", "cannot be read; send UTF-8 text") from exc
        return parameters

    @property
    def id(self) -> str:
        try:
            given: str = self._request.request_id()
        except ValueError as exc:  # not valid UTF-8
            raise InputError.at("id", "cannot be read; send UTF-8 text") from exc
        return given

    @property
    def timeout_us(self) -> int:
        timeout: int = self._request.timeout()
        return timeout

    def tensor(self, name: str) -> npt.NDArray[Any] | None:
        tensor = pb_utils.get_input_tensor_by_name(self._request, name)
        return None if tensor is None else tensor.as_numpy()

    def defer(self) -> None:
        if self._sender is None:
            self._sender = self._request.get_response_sender()

    def reply(self, answer: Outputs | SIEError) -> None:
        if not isinstance(answer, SIEError) and not ROOM.wait_for(sum(each.nbytes for each in answer.values())):
            answer = BusyError("shared memory is full; retry, or give the server more (docker run --shm-size)")
        self._sender.send(_response(answer), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        cancelled: bool = self._request.is_cancelled()
        return cancelled


class Stage(Protocol):
    """The interface of a stage. Triton's thread calls both methods.

    `execute` returns one answer per request, in order. It must not raise: Triton would also answer deferred requests,
    and crash later.
    """

    def execute(self, requests: Sequence[TritonRequest]) -> list[Answer]: ...

    def close(self) -> None: ...


class TritonModel(ABC):
    """A Python model of Triton, which holds the stage of one step.

    Triton calls all methods on one thread: `initialize` once, `execute` for each batch, `finalize` at the end. If
    `initialize` raises, Triton does not serve the step and reports the exception.
    """

    _stage: Stage

    def initialize(self, args: Mapping[str, str]) -> None:
        _log_to_triton()
        _end_with_tritonserver()
        _end_without_destructors()
        keep_returning()
        spans()  # with the first request it would delay that
        parameters = {k: v["string_value"] for k, v in json.loads(args["model_config"])["parameters"].items()}
        spec = ModelSpec.from_json(parameters[SPEC_PARAMETER])
        self._stage = self.build(spec.on(",".join(instance_devices(spec.runtime.device, args))), parameters, args)

    @abstractmethod
    def build(self, spec: ModelSpec, parameters: Mapping[str, str], args: Mapping[str, str]) -> Stage:
        """Make the stage that answers this step's requests."""

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        answers = self._stage.execute([TritonRequest(request) for request in requests])
        return [None if isinstance(answer, Later) else _response_or_error(answer) for answer in answers]

    def finalize(self) -> None:
        self._stage.close()


class ColdModel(TritonModel):
    """A step with a status record, which Triton's thread makes in `build`, and `finalize` removes.

    Raises PermissionError if the directory of the records is not private to this user, or another OSError if it is not
    writable.
    """

    def status(self, spec: ModelSpec, parameters: Mapping[str, str], args: Mapping[str, str]) -> StatusWriter:
        model, _, stage = args["model_name"].rpartition("-")
        self._status = StatusWriter(_status_directory(spec), model, stage, int(parameters["generation"]))
        return self._status

    def finalize(self) -> None:
        super().finalize()
        self._status.remove()


class PreprocessModel(ColdModel):
    """The step M-preprocess: inputs → sealed features. `build` raises the errors of ColdModel."""

    def build(self, spec: ModelSpec, parameters: Mapping[str, str], args: Mapping[str, str]) -> Stage:
        from sie_triton.pipeline.stages import preprocess

        stage = preprocess.Preprocess(spec, self.status(spec, parameters, args))
        _load_if_resident(stage, spec, parameters)
        return stage


class InferenceModel(ColdModel):
    """The step M-inference: sealed features → sealed rows. `build` raises the errors of ColdModel."""

    def build(self, spec: ModelSpec, parameters: Mapping[str, str], args: Mapping[str, str]) -> Stage:
        from sie_triton.pipeline.stages import inference

        device = spec.runtime.device
        if not spec.runtime.status_dir:  # no controller chooses among several
            device = device.partition(",")[0]
            if unused := unused_gpus(device):
                logging.getLogger(__name__).warning("%s: %s", spec.model, unused)
        stage = inference.Inference(spec, device, self.status(spec, parameters, args))
        _load_if_resident(stage, spec, parameters)
        return stage


class PostprocessModel(ColdModel):
    """The step M-postprocess: sealed rows → requested outputs. It is never cold, but has a status record too."""

    def build(self, spec: ModelSpec, parameters: Mapping[str, str], args: Mapping[str, str]) -> Stage:
        from sie_triton.pipeline.stages import postprocess

        status = self.status(spec, parameters, args)
        return postprocess.Postprocess(spec, Seal(status.directory), status.traffic)


def _load_if_resident(stage: ColdStage[Any], spec: ModelSpec, parameters: Mapping[str, str]) -> None:
    """Load a resident model: in the background, for which the launcher waits; before Triton is ready without one."""
    if parameters["residency"] == "resident":
        if spec.runtime.status_dir or parameters["generation"] != "0":
            stage.preload()
        else:
            stage.warm_up()


def _response_or_error(answer: Outputs | SIEError) -> Any:
    """Convert an answer, or return an error response if that fails: `execute` must return responses only."""
    try:
        return _response(answer, _shared_tensor)
    except Exception:
        log.exception("an answer could not be converted into a response")
        return _response(ModelError("the response could not be sent; tritonserver.log has the details"))


def _new_tensor(name: str, array: npt.NDArray[Any]) -> Any:
    return pb_utils.Tensor(name, array[None])


def _shared_tensor(name: str, array: npt.NDArray[Any]) -> Any:
    """Return a tensor that answers share if it is tiny, as empty outputs are. Only the thread in `execute` calls this.

    It stays in shared memory, out of which Triton copies it; to put it there would take longest.
    """
    if array.nbytes > TINY_BYTES:
        return _new_tensor(name, array)
    return _tiny_tensor(name, array.dtype.char, array.shape, array.tobytes())


@lru_cache(1024)
def _tiny_tensor(name: str, dtype: str, shape: Sequence[int], content: bytes) -> Any:
    return _new_tensor(name, np.ndarray(shape, dtype, content))


def _response(answer: Outputs | SIEError, tensor: Callable[[str, npt.NDArray[Any]], Any] = _new_tensor) -> Any:
    if isinstance(answer, SIEError):
        # Triton adds TritonError to pb_utils after this module was imported.
        error = pb_utils.TritonError(with_prefix(answer), getattr(pb_utils.TritonError, answer.code))
        return pb_utils.InferenceResponse(error=error)
    return pb_utils.InferenceResponse(output_tensors=[tensor(*output) for output in answer.items()])


def _status_directory(spec: ModelSpec) -> Path:
    """Return the directory of status records: the launcher's, or one per tritonserver (the parent) without launcher."""
    if spec.runtime.status_dir:
        return private_directory(Path(spec.runtime.status_dir))
    own = str(os.getppid())
    try:
        return private_directory(temporary_directory() / own)
    except OSError as exc:
        log.warning("%s; using the user's cache directory for status records", exc)
        with suppress(OSError):
            return private_directory(user_cache_path("sie-triton") / own)
        raise


def _end_with_tritonserver() -> None:
    """End this process with tritonserver: if that is killed, the stub may wait for the stage's threads for ever."""
    tritonserver = Process(os.getppid())

    def watch() -> None:
        tritonserver.wait()
        os._exit(1)

    Thread(target=watch, name="watch-tritonserver", daemon=True).start()


def _end_without_destructors() -> None:
    """End this process where Python would begin to free its objects, after other exit handlers.

    A request that something still holds would return its memory to a pool that Triton has already closed: a
    segmentation fault. And to free everything that was imported takes longer than to end.
    """
    atexit.register(os._exit, 0)


class _TritonLogHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logger = pb_utils.Logger
        write = (
            logger.log_error
            if record.levelno >= logging.ERROR
            else logger.log_warn
            if record.levelno >= logging.WARNING
            else logger.log_info
        )
        line = self.format(record)
        try:
            write(line)
        except Exception:
            # Triton's logger refuses paths, also of this file, with bytes that are no text in this process's locale.
            sys.stderr.write(f"{line.encode(errors='backslashreplace').decode()}\n")


def _log_to_triton() -> None:
    log, handler = logging.getLogger("sie_triton"), _TritonLogHandler()
    handler.setFormatter(JsonFormatter() if OPTIONS.log_json else PlainFormatter(head=""))  # Triton adds the head
    log.handlers = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False
