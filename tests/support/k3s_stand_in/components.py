"""Health ports of the controller manager and the scheduler, each with its own certificate."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from herder.engine import certificates

from .config import K3sConfig

PORTS = {"kube-controller-manager": 10257, "kube-scheduler": 10259}
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


@asynccontextmanager
async def running_components(config: K3sConfig) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for name, port in PORTS.items():
            arguments = config.arguments[name]
            directory = Path(arguments.get("cert-dir") or config.tls / name)
            port = int(arguments.get("secure-port") or port)
            served = await asyncio.start_server(_answer, "127.0.0.1", port, ssl=_context(directory, name))
            await stack.enter_async_context(served)
        yield


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_ANSWER)
    except (OSError, EOFError):
        pass
    finally:
        writer.close()


def _context(directory: Path, name: str) -> ssl.SSLContext:
    """A self-signed certificate in the component's directory, with its CA in the same file: clients trust that file."""
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    if not certificate.exists():
        now = datetime.now(UTC)
        authority = certificates.authority(f"{name}-ca", now=now, life=timedelta(days=365))
        issued = certificates.serving(authority, name, ("localhost", "127.0.0.1"), now=now, life=timedelta(days=365))
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        key.write_bytes(issued.key_pem)
        certificate.write_bytes(issued.certificate_pem + authority.certificate_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
