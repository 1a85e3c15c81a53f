"""Downloads for nodes: the node agent, packed from our own modules, and files of the assets directory."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO

from herder.api.rke.node.agents import ASSET as AGENT
from herder.api.settings import NODE_ASSETS
from herder.engine.wire import Response
from herder.gateway.nodes.install_script import uninstall_script
from herder.gateway.nodes.text_responses import Refusal, text

PREFIX = "/assets/"
UNINSTALL = "system-agent-uninstall.sh"
CHUNK_BYTES = 256 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,200}")  # A single path segment, so that nothing leaves the directory.
_BINARY = {"content-type": "application/octet-stream"}


class Assets:
    """Serves downloads."""

    def __init__(self, build_agent: Callable[[Path], object], setting: Callable[[str], str]) -> None:
        """`build_agent` writes the node agent as one file; it is called once, on the first download."""
        self._build_agent = build_agent
        self._setting = setting
        self._agent: bytes | None = None
        self._building = asyncio.Lock()

    async def answer(self, path: str) -> Response:
        name = path.removeprefix(PREFIX)
        if name == AGENT:
            return Response(200, dict(_BINARY), await self._packed_agent())
        if name == UNINSTALL:
            return text(200, uninstall_script())
        file = await asyncio.to_thread(self._open, name)
        if file is None:
            raise Refusal(404, f"{name[:200]}: not found; add it to the directory in setting {NODE_ASSETS}")
        return Response(200, dict(_BINARY), stream=_chunks(file))

    async def _packed_agent(self) -> bytes:
        async with self._building:
            if self._agent is None:
                self._agent = await asyncio.to_thread(self._pack)
            return self._agent

    def _pack(self) -> bytes:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, AGENT)
            self._build_agent(path)
            return path.read_bytes()

    def _open(self, name: str) -> BinaryIO | None:
        directory = self._setting(NODE_ASSETS)
        if not directory or _NAME.fullmatch(name) is None:
            return None
        path = Path(directory, name)
        return path.open("rb") if path.is_file() else None


async def _chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    with file:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk
