"""A server that stops, restarts, stays silent or holds a response whenever a test wants it.

It answers over Triton's HTTP or gRPC as an ensemble of ours does, with `dense` [n, 1] = 1.
"""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc

from sie_triton.contract.tensors import TIMING_FIELDS

DTYPES = {"FP32": np.float32, "INT32": np.int32}


class FakeTriton:
    """Fake of tritonserver. `is_silent`: requests are read and not answered. `num_asked` counts inference requests,
    `paths` are HTTP's. Requests without `token` are refused if it is not empty.
    """

    def __init__(self, transport: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"{transport}://127.0.0.1:{self.port}"
        self.is_silent = False
        self.token = ""
        self.outputs = ["dense", "token_count", "timing_ms"]
        self.num_asked = 0
        self.paths: list[str] = []
        self._transport = transport
        self._server: Any = None

    def __enter__(self) -> "FakeTriton":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._is_over = threading.Event()
        self._server = HttpServer(self) if self._transport == "http" else grpc_server(self)

    def stop(self) -> None:
        """Stop listening, and cut every connection."""
        self._is_over.set()
        stopping = self._server.stop(0)
        if stopping is not None:  # of gRPC, which takes requests until it is done, and cancels them
            stopping.wait(10)

    def admits(self, header: str | None) -> bool:
        return not self.token or header == f"Bearer {self.token}"

    def answer(self, n: int) -> list[tuple[str, str, list[int], list[float]]]:
        """Name, dtype, shape and values of each output for n items."""
        self.num_asked += 1
        if self.is_silent:
            self._is_over.wait()
            time.sleep(0.5)  # the connection is cut by then
        timing = len(TIMING_FIELDS)
        made = {
            "dense": ("FP32", [n, 1], [1] * n),
            "token_count": ("INT32", [n], [1] * n),
            "timing_ms": ("FP32", [timing], [0] * timing),
        }
        return [(name, *made[name]) for name in self.outputs]


class HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, fake: FakeTriton) -> None:
        self.fake, self.sockets = fake, []
        super().__init__(("127.0.0.1", fake.port), HttpHandler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,))
        self._thread.start()

    def get_request(self):
        connection, address = super().get_request()
        self.sockets.append(connection)
        return connection, address

    def handle_error(self, *_):
        """Ignore a connection that was cut."""

    def stop(self, _: float) -> None:
        self.shutdown()
        self.server_close()
        for connection in self.sockets:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                connection.close()
        self._thread.join()


class HttpHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HttpServer

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.fake.paths.append(self.path)
        self.answer({"model_stats": [{"name": "org__model"}, {"name": "org__other"}]})

    def do_POST(self):
        self.server.fake.paths.append(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        header = json.loads(body[: int(self.headers["Inference-Header-Content-Length"])])
        if not self.server.fake.admits(self.headers["Authorization"]):
            self.answer({"error": "a token is needed"}, 401)
            return
        names = ("name", "datatype", "shape", "data")
        made = self.server.fake.answer(header["inputs"][0]["shape"][0])
        self.answer({"outputs": [dict(zip(names, output, strict=True)) for output in made]})

    def answer(self, content, status=200):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class GrpcService(service_pb2_grpc.GRPCInferenceServiceServicer):
    def __init__(self, fake: FakeTriton) -> None:
        self.fake = fake

    def ServerLive(self, request, context):
        return messages.ServerLiveResponse(live=True)

    def ServerReady(self, request, context):
        while self.fake.is_silent and not self.fake._is_over.wait(0.01):
            pass
        return messages.ServerReadyResponse(ready=True)

    def ModelInfer(self, request, context):
        if not self.fake.admits(dict(context.invocation_metadata()).get("authorization")):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "a token is needed")
        response = messages.ModelInferResponse()
        for name, dtype, shape, data in self.fake.answer(request.inputs[0].shape[0]):
            response.outputs.add(name=name, datatype=dtype, shape=shape)
            response.raw_output_contents.append(np.array(data, DTYPES[dtype]).tobytes())
        return response


def grpc_server(fake: FakeTriton) -> grpc.Server:
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(GrpcService(fake), server)
    server.add_insecure_port(f"127.0.0.1:{fake.port}")
    server.start()
    return server
