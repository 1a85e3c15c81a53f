"""The ports where a controller manager and a scheduler say that they are well, with certificates of their own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from herder.engine import certificates

from .told import Told

PORTS = {"kube-controller-manager": 10257, "kube-scheduler": 10259}
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


@asynccontextmanager
async def running_components(told: Told) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for name, port in PORTS.items():
            arguments = told.arguments[name]
            directory = Path(arguments.get("cert-dir") or told.tls / name)
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
    """What it signs itself lies in its directory, its authority in the same file: who asks trusts that."""
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    if not certificate.exists():
        now = datetime.now(UTC)
        authority = certificates.authority(f"{name}-ca", now=now, life=timedelta(days=365))
        made = certificates.serving(authority, name, ("localhost", "127.0.0.1"), now=now, life=timedelta(days=365))
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        key.write_bytes(made.key_pem)
        certificate.write_bytes(made.certificate_pem + authority.certificate_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
