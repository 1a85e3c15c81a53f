"""What goes into the Authorization header, kept fresh: a token, a file that is rotated, or a plug-in's answer."""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec

from herder.engine.client.kubeconfig import Connection, ExecPlugin
from herder.engine.meta.errors import Unauthorized
from herder.engine.meta.kinds import Object

TOKEN_FILE_SECONDS = 60.0  # as client-go: a projected token is rotated long before it expires
EXPIRY_MARGIN_SECONDS = 30.0
PLUGIN_SECONDS = 60.0


class Credentials(Protocol):
    async def header(self) -> str:
        """The header's value, or "" for none."""

    def refused(self) -> None:
        """The server did not accept the last value: ask the source again next time."""


def credentials_for(connection: Connection, *, clock: Callable[[], float] = time.time) -> Credentials:
    if connection.exec_plugin:
        return ExecCredentials(connection.exec_plugin, clock)
    if connection.token_file:
        return TokenFile(Path(connection.token_file), clock)
    if connection.token:
        return Fixed(f"Bearer {connection.token}")
    if connection.username:
        pair = f"{connection.username}:{connection.password}".encode()
        return Fixed("Basic " + base64.b64encode(pair).decode())
    return Fixed("")


class Fixed:
    def __init__(self, value: str) -> None:
        self._value = value

    async def header(self) -> str:
        return self._value

    def refused(self) -> None:
        """There is no other source."""


class TokenFile:
    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._value = ""
        self._read_at = float("-inf")

    async def header(self) -> str:
        if self._clock() - self._read_at > TOKEN_FILE_SECONDS:
            try:
                text = await asyncio.to_thread(self._path.read_text)
            except (OSError, UnicodeDecodeError) as error:
                raise Unauthorized(f"token file {self._path}: {error}") from error
            self._value, self._read_at = f"Bearer {text.strip()}", self._clock()
        return self._value

    def refused(self) -> None:
        self._read_at = float("-inf")


class ExecCredentials:
    """Runs the plug-in when its last answer has expired; callers that come meanwhile wait for the same answer."""

    def __init__(self, plugin: ExecPlugin, clock: Callable[[], float]) -> None:
        self._plugin = plugin
        self._clock = clock
        self._value = ""
        self._expires = float("-inf")
        self._lock = asyncio.Lock()

    async def header(self) -> str:
        async with self._lock:
            if self._clock() >= self._expires - EXPIRY_MARGIN_SECONDS:
                self._keep(await self._run())
        return self._value

    def refused(self) -> None:
        self._expires = float("-inf")

    async def _run(self) -> Object:
        plugin = self._plugin
        request = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
        environment = {
            **os.environ,
            **dict(plugin.environment),
            "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode(),
        }
        output = await self._output(environment)
        try:
            answer = msgspec.json.decode(output)
        except msgspec.DecodeError:
            answer = None
        if not isinstance(answer, dict):
            raise self._failure("did not print an ExecCredential")
        return answer

    async def _output(self, environment: dict[str, str]) -> bytes:
        plugin = self._plugin
        try:
            process = await asyncio.create_subprocess_exec(
                plugin.command,
                *plugin.arguments,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,  # nobody is there to answer its questions
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            hint = f"; {plugin.install_hint}" if plugin.install_hint else ""
            raise self._failure(f"cannot be started: {error.strerror}{hint}") from error
        try:
            async with asyncio.timeout(PLUGIN_SECONDS):
                output, _ = await process.communicate()
        except TimeoutError:
            raise self._failure(f"gave no answer in {PLUGIN_SECONDS:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise self._failure(f"exited with status {process.returncode}")
        return output

    def _keep(self, answer: Object) -> None:
        status = answer.get("status")
        if not isinstance(status, dict) or not status.get("token"):
            raise self._failure("gave no token (client certificates from plug-ins are not supported)")
        stamp = status.get("expirationTimestamp")
        try:
            expires = datetime.fromisoformat(stamp).timestamp() if stamp else float("inf")
        except (ValueError, TypeError):
            raise self._failure("gave an expirationTimestamp that is not a time") from None
        self._value, self._expires = f"Bearer {status['token']}", expires

    def _failure(self, what: str) -> Unauthorized:
        return Unauthorized(f"credential plug-in {self._plugin.command} {what}")
