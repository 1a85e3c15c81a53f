"""Limit the time of a response as a whole: the timeout of a socket starts again with every byte."""

import contextlib
import socket
import threading


class Deadline:
    """Shuts a connection down when the time is over, so that reading from it ends."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self.is_over = False
        self._connection = connection
        self._timer = threading.Timer(seconds, self._shut_down)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()

    def _shut_down(self) -> None:
        self.is_over = True
        with contextlib.suppress(OSError):  # closed in the meantime
            # Of TLS connections too, only the descriptor: another thread reads from the rest.
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)
