"""Nothing of the install script is sent, and nothing is fetched, without TLS."""

from __future__ import annotations

import hashlib
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from herder.gateway.nodes.rendering import Told, shell_script

TOKEN = "t" * 54


@dataclass
class Server:
    """Answers every path with the same text, or with a redirect."""

    text: bytes
    url: str = ""
    redirect: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)  # path, and what was shown for it


def serve(server: Server, context: ssl.SSLContext | None = None) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.asked.append((self.path, self.headers.get("Authorization", "")))
            self.send_response(302 if server.redirect else 200)
            if server.redirect:
                self.send_header("Location", server.redirect + self.path)
            self.send_header("Content-Length", str(len(server.text)))
            self.end_headers()
            self.wfile.write(server.text)

        def log_message(self, *_: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        listener.socket = context.wrap_socket(listener.socket, server_side=True)
    server.url = f"{'https' if context else 'http'}://127.0.0.1:{listener.server_address[1]}"
    threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    return listener


@pytest.fixture
def plain() -> Iterator[Server]:
    server = Server(b"certificates that anybody can send")
    listener = serve(server)
    yield server
    listener.shutdown()
    listener.server_close()


def run(directory: Path, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    script = directory / "install.sh"
    script.write_text(shell_script(Told("")))
    own = {f"CATTLE_AGENT_{name}_DIR": str(directory / name.lower()) for name in ("VAR", "CONFIG")}
    own |= {"CATTLE_AGENT_BIN_PREFIX": str(directory / "prefix"), "CATTLE_AGENT_RETRIES": "0"}
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), **own, **variables}
    command = ["sh", str(script), "--worker", "--token", TOKEN, *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


@pytest.mark.xfail(strict=True, reason="plain http is accepted, also with a checksum")
@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("by", ["flag", "environment"])
def test_a_manager_without_tls_is_asked_nothing(tmp_path: Path, plain: Server, by: str, pinned: bool) -> None:
    """Whoever is on the way sends the right certificates: over plain http they prove nothing."""
    flags = ["--ca-checksum", hashlib.sha256(plain.text).hexdigest()] if pinned else []
    flags += ["--server", plain.url] if by == "flag" else []
    done = run(tmp_path, *flags, **({"CATTLE_SERVER": plain.url} if by == "environment" else {}))
    assert (done.returncode, "https://" in done.stderr) == (2, True), done.stdout + done.stderr
    assert plain.asked == []
