"""Null transport for connections that are closed or hijacked: it ignores all calls."""

from __future__ import annotations

import asyncio


class ClosedTransport(asyncio.Transport):
    """Transport that does nothing."""

    def is_closing(self) -> bool:
        return True

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


CLOSED = ClosedTransport()
