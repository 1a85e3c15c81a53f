"""Authorization header values from a static token, a rotated token file or an exec credential plugin."""

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

from herder.engine.client.kubeconfig import ExecPlugin, RestConfig
from herder.engine.meta.errors import Unauthorized
from herder.engine.meta.kinds import Object

TOKEN_FILE_SECONDS = 60.0  # as in client-go: a projected token is rotated long before it expires
EXPIRY_MARGIN_SECONDS = 30.0
PLUGIN_SECONDS = 60.0


class Credentials(Protocol):
    """Source of Authorization header values."""

    async def header(self) -> str:
        """Return the header value, or an empty string for none."""

    def invalidate(self) -> None:
        """Discard the cached value, because the server rejected it."""


def credentials_for(connection: RestConfig, *, clock: Callable[[], float] = time.time) -> Credentials:
    if connection.exec_plugin:
        return ExecCredentials(connection.exec_plugin, clock)
    if connection.token_file:
        return TokenFile(Path(connection.token_file), clock)
    if connection.token:
        return StaticCredentials(f"Bearer {connection.token}")
    if connection.username:
        pair = f"{connection.username}:{connection.password}".encode()
        return StaticCredentials("Basic " + base64.b64encode(pair).decode())
    return StaticCredentials("")


class StaticCredentials:
    """Fixed header value."""

    def __init__(self, value: str) -> None:
        self._value = value

    async def header(self) -> str:
        return self._value

    def invalidate(self) -> None:
        """Do nothing: there is no other source."""


class TokenFile:
    """Token from a file that is rotated, such as a projected service account token."""

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

    def invalidate(self) -> None:
        self._read_at = float("-inf")


class ExecCredentials:
    """Runs the plugin when its last credential has expired; concurrent callers share one run."""

    def __init__(self, plugin: ExecPlugin, clock: Callable[[], float]) -> None:
        self._plugin = plugin
        self._clock = clock
        self._value = ""
        self._expires = float("-inf")
        self._lock = asyncio.Lock()

    async def header(self) -> str:
        async with self._lock:
            if self._clock() >= self._expires - EXPIRY_MARGIN_SECONDS:
                self._store(await self._run())
        return self._value

    def invalidate(self) -> None:
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
            credential = msgspec.json.decode(output)
        except msgspec.DecodeError:
            credential = None
        if not isinstance(credential, dict):
            raise self._failure("did not print an ExecCredential")
        return credential

    async def _output(self, environment: dict[str, str]) -> bytes:
        plugin = self._plugin
        try:
            process = await asyncio.create_subprocess_exec(
                plugin.command,
                *plugin.arguments,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,  # non-interactive
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            hint = f"; {plugin.install_hint}" if plugin.install_hint else ""
            raise self._failure(f"cannot be started: {error.strerror}{hint}") from error
        try:
            async with asyncio.timeout(PLUGIN_SECONDS):
                output, _ = await process.communicate()
        except TimeoutError:
            raise self._failure(f"timed out after {PLUGIN_SECONDS:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise self._failure(f"exited with status {process.returncode}")
        return output

    def _store(self, credential: Object) -> None:
        status = credential.get("status")
        if not isinstance(status, dict) or not status.get("token"):
            raise self._failure("returned no token; client certificates from plugins are not supported")
        stamp = status.get("expirationTimestamp")
        try:
            expires = datetime.fromisoformat(stamp).timestamp() if stamp else float("inf")
        except (ValueError, TypeError):
            raise self._failure("returned an invalid expirationTimestamp") from None
        self._value, self._expires = f"Bearer {status['token']}", expires

    def _failure(self, what: str) -> Unauthorized:
        return Unauthorized(f"credential plugin {self._plugin.command} {what}")
