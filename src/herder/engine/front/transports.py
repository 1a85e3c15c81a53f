"""The transport of a connection that is closed, or is no longer ours: it takes everything and does nothing."""

from __future__ import annotations

import asyncio


class ClosedTransport(asyncio.Transport):
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
