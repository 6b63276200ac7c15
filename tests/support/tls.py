"""A proxy that ends TLS in front of a server on this machine, with a certificate of its own."""

import asyncio
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

HERE = "127.0.0.1"


def certificate(directory: Path) -> Path:
    """Write a key and a certificate for 127.0.0.1 that signs itself, and return their file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HERE)])
    start = datetime.datetime(2020, 1, 1)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, start, start + datetime.timedelta(365 * 100))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HERE))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    file = directory / "own.pem"
    file.write_bytes(made.public_bytes(pem) + key.private_bytes(pem, form, serialization.NoEncryption()))
    return file


@contextmanager
def tls_proxy(port: int, file: Path) -> Iterator[int]:
    """Pass connections on to `port`, and yield the proxy's own port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)
    context.set_alpn_protocols(["h2", "http/1.1"])
    ready, ports = threading.Event(), []

    async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(HERE, port)
        await asyncio.gather(copied(reader, inner_writer), copied(inner_reader, writer))

    async def serve() -> None:
        server = await asyncio.start_server(pass_on, HERE, 0, ssl=context)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        await over.wait()
        server.close()

    loop, over = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    ready.wait()
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.close()
