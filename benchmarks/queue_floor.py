"""The floor of the queue service: TLS that gives every block of 16 KiB back.

The same cipher suite, the same groups, a certificate of the same kind, and nothing but the block in
between: once on uvloop's TLS, once on the network loop of our queue server.
`python -m benchmarks.queue_floor uvloop|carrier` prints its port and serves.
"""

import asyncio
import contextlib
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from waystation.base.clock import SystemClock
from waystation.client.queue.block import BLOCK_BYTES
from waystation.client.queue.tls import ALPN, environment
from waystation.net.blocks import Blocks, pulled_blocks
from waystation.net.loop import NetLoop, bound_socket

from .load import ROOT
from .queue_target import QueueTarget


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._waiting = bytearray()

    def data_received(self, data: bytes) -> None:
        if not self._waiting and len(data) == BLOCK_BYTES:
            self._transport.write(data)
            return
        self._waiting += data
        while len(self._waiting) >= BLOCK_BYTES:
            self._transport.write(bytes(self._waiting[:BLOCK_BYTES]))
            del self._waiting[:BLOCK_BYTES]


def _certificate(folder: Path) -> tuple[Path, Path]:
    key = Ed448PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "floor")])
    today = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=1))
        .sign(key, None)
    )
    chain_file, key_file = folder / "floor.crt", folder / "floor.key"
    chain_file.write_bytes(certificate.public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return chain_file, key_file


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols([ALPN])
    context.num_tickets = 0
    with tempfile.TemporaryDirectory() as folder:
        context.load_cert_chain(*_certificate(Path(folder)))
    return context


async def _serve_uvloop() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, "127.0.0.1", 0, ssl=_context())
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class _BlockEcho(Blocks):
    def block_received(self, block: bytes) -> None:
        self.send(block)


async def _serve_carrier() -> None:
    port = pulled_blocks(NetLoop(clock=SystemClock()))
    port.listen(bound_socket("127.0.0.1", 0), lambda _: _BlockEcho(port), _context())
    print(port.address[1], flush=True)
    await asyncio.Event().wait()


@contextlib.contextmanager
def queue_floor(kind: str) -> Iterator[QueueTarget]:
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.queue_floor", kind],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    try:
        port = int(child.stdout.readline())
        yield QueueTarget(f"127.0.0.1:{port}", (child.pid,))
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def main() -> None:
    import uvloop

    serve = {"uvloop": _serve_uvloop, "carrier": _serve_carrier}[sys.argv[1]]
    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        contextlib.suppress(KeyboardInterrupt),
    ):
        runner.run(serve())


if __name__ == "__main__":
    main()
