"""What goes into the Authorization header, kept fresh: a token, a file that is rotated, or a plug-in's answer."""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

import msgspec

from herder.engine.client.kubeconfig import Connection, ExecPlugin
from herder.engine.meta.errors import Unauthorized
from herder.engine.meta.kinds import Object

Credentials = Callable[[], Awaitable[str]]
"""Answers the header's value, or "" for none."""

TOKEN_FILE_SECONDS = 60.0  # as client-go: a projected token is rotated long before it expires
EXPIRY_MARGIN_SECONDS = 30.0


def credentials_for(connection: Connection, *, clock: Callable[[], float] = time.time) -> Credentials:
    if connection.exec_plugin:
        return ExecCredentials(connection.exec_plugin, clock)
    if connection.token_file:
        return TokenFile(Path(connection.token_file), clock)
    if connection.token:
        return _fixed(f"Bearer {connection.token}")
    if connection.username:
        pair = f"{connection.username}:{connection.password}".encode()
        return _fixed("Basic " + base64.b64encode(pair).decode())
    return _fixed("")


def _fixed(value: str) -> Credentials:
    async def answer() -> str:
        return value

    return answer


class TokenFile:
    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self.path = path
        self.clock = clock
        self.value = ""
        self.read_at = float("-inf")

    async def __call__(self) -> str:
        if self.clock() - self.read_at > TOKEN_FILE_SECONDS:
            text = await asyncio.to_thread(self.path.read_text)
            self.value, self.read_at = f"Bearer {text.strip()}", self.clock()
        return self.value


class ExecCredentials:
    """Runs the plug-in when its last answer has expired; callers that come meanwhile wait for the same answer."""

    def __init__(self, plugin: ExecPlugin, clock: Callable[[], float]) -> None:
        self.plugin = plugin
        self.clock = clock
        self.value = ""
        self.expires = float("-inf")
        self.lock = asyncio.Lock()

    async def __call__(self) -> str:
        async with self.lock:
            if self.clock() >= self.expires - EXPIRY_MARGIN_SECONDS:
                self._keep(await self._run())
        return self.value

    async def _run(self) -> Object:
        plugin = self.plugin
        request = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
        environment = {
            **os.environ,
            **dict(plugin.environment),
            "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode(),
        }
        process = await asyncio.create_subprocess_exec(
            plugin.command, *plugin.arguments, env=environment, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        if process.returncode:
            raise Unauthorized(f"credential plug-in {plugin.command} exited with status {process.returncode}")
        try:
            answer: Object = msgspec.json.decode(output)
        except msgspec.DecodeError as error:
            raise Unauthorized(f"credential plug-in {plugin.command} did not print an ExecCredential") from error
        return answer

    def _keep(self, answer: Object) -> None:
        status = answer.get("status") or {}
        if not status.get("token"):
            raise Unauthorized(f"credential plug-in {self.plugin.command} gave no token")
        self.value = f"Bearer {status['token']}"
        stamp = status.get("expirationTimestamp")
        self.expires = datetime.fromisoformat(stamp).timestamp() if stamp else float("inf")
