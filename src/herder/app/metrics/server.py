"""Minimal HTTP server for Prometheus scrapes and health probes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from herder.app.metrics.caches import CacheCollector
from herder.app.metrics.certificates import add_certificate_metric
from herder.app.metrics.clusters import add_cluster_metrics
from herder.app.metrics.operations import add_operation_metrics
from herder.engine.control.metrics import Metrics
from herder.engine.runtime.manager import Manager

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def process_metrics() -> Metrics:
    """Metrics of the runtime and of the process: memory, CPU, open files."""
    from prometheus_client import ProcessCollector

    metrics = Metrics()
    ProcessCollector(registry=metrics.registry)
    return metrics


def add_manager_metrics(manager: Manager, setting: Callable[[str], str]) -> None:
    """Metrics of what the controllers work on."""
    manager.metrics.registry.register(CacheCollector(manager))
    add_cluster_metrics(manager, setting)
    add_operation_metrics(manager)
    add_certificate_metric(manager)


async def serve(render: Callable[[], bytes], host: str, port: int) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith((b"GET /metrics ", b"GET /metrics?")):
                    status, body = b"200 OK", render()
                elif head.startswith((b"GET /healthz ", b"GET /readyz ")):
                    status, body = b"200 OK", b"ok\n"
                else:
                    status, body = b"404 Not Found", b""
                writer.write(
                    b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n"
                    b"Connection: close\r\n\r\n%s" % (status, CONTENT_TYPE.encode(), len(body), body)
                )
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # The client disconnected or did not speak HTTP.
        finally:
            writer.close()

    return await asyncio.start_server(answer, host, port)
