"""Readiness notification of long-running processes, by systemd's protocol (sd_notify)."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

SOCKET = "NOTIFY_SOCKET"
READY = b"READY=1"


def take_notification_socket() -> str:
    """Path of the socket to notify; removed from the environment, so that child processes do not inherit it."""
    return os.environ.pop(SOCKET, "")


def notify_ready(path: str) -> None:
    """Tell the parent that the process serves requests. It is no error if the parent has ended."""
    if not path:
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path  # "@" stands for an abstract socket
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(address)
        sender.send(READY)
