"""The install script sends and fetches nothing without TLS."""

from __future__ import annotations

import hashlib
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from herder.engine import certificates
from herder.gateway.nodes.install_script import SCRIPTS, ScriptInputs, shell_script

TOKEN = "t" * 54


@dataclass
class Server:
    """Responds to every path with the same text, or with a redirect."""

    text: bytes
    url: str = ""
    redirect: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)  # path and Authorization header


def serve(server: Server, context: ssl.SSLContext | None = None) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.requests.append((self.path, self.headers.get("Authorization", "")))
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
    server = Server(b"certificates that an attacker can send")
    listener = serve(server)
    yield server
    listener.shutdown()
    listener.server_close()


def run(directory: Path, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    script = directory / "install.sh"
    script.write_text(shell_script(ScriptInputs("")))
    agent_variables = {f"CATTLE_AGENT_{name}_DIR": str(directory / name.lower()) for name in ("VAR", "CONFIG")}
    agent_variables |= {"CATTLE_AGENT_BIN_PREFIX": str(directory / "prefix"), "CATTLE_AGENT_RETRIES": "0"}
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), **agent_variables, **variables}
    command = ["sh", str(script), "--worker", "--token", TOKEN, *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("source", ["flag", "environment"])
def test_no_request_is_sent_to_a_manager_without_tls(tmp_path: Path, plain: Server, source: str, pinned: bool) -> None:
    """An attacker on the path can send the right certificates: over plain HTTP they prove nothing."""
    flags = ["--ca-checksum", hashlib.sha256(plain.text).hexdigest()] if pinned else []
    flags += ["--server", plain.url] if source == "flag" else []
    result = run(tmp_path, *flags, **({"CATTLE_SERVER": plain.url} if source == "environment" else {}))
    assert (result.returncode, "https://" in result.stderr) == (2, True), result.stdout + result.stderr
    assert plain.requests == []


@pytest.mark.parametrize("name", ["CATTLE_AGENT_BINARY_URL", "CATTLE_AGENT_BINARY_BASE_URL"])
def test_no_program_is_fetched_without_tls(tmp_path: Path, plain: Server, name: str) -> None:
    result = run(tmp_path, "--server", "https://127.0.0.1:1", **{name: f"{plain.url}/agent"})
    assert (result.returncode, name in result.stderr) == (2, True), result.stdout + result.stderr
    local = run(tmp_path, CATTLE_REMOTE_ENABLED="false", **{name: f"{plain.url}/agent"})
    assert (local.returncode, name in local.stderr) == (2, True), local.stdout + local.stderr
    assert plain.requests == []


BAD = {
    "another protocol": ("--server", "ftp://127.0.0.1"),
    "in capitals": ("--server", "HTTP://127.0.0.1"),
    "without a host": ("--server", "https://"),
    "a quote": ("--server", 'https://127.0.0.1"'),
    "a space": ("--server", "https://127.0.0.1 x"),
    "half a checksum": ("--server", "https://127.0.0.1:1", "--ca-checksum", "ab"),
    "no checksum": ("--server", "https://127.0.0.1:1", "--ca-checksum", "x" * 64),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_addresses_and_checksums_are_rejected(tmp_path: Path, case: str) -> None:
    result = run(tmp_path, *BAD[case])
    assert (result.returncode, BAD[case][-2] in result.stderr) == (2, True), result.stdout + result.stderr


@pytest.mark.parametrize("program", ["curl", "wget"])
def test_a_redirect_is_not_followed(tmp_path: Path, plain: Server, program: str) -> None:
    """Not even for the certificates, whose digest is known: all later requests would go there too."""
    now = datetime.now(UTC)
    signer = certificates.authority("a", now=now, life=timedelta(days=1))
    pair = certificates.serving(signer, "s", ["127.0.0.1"], now=now, life=timedelta(days=1))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificates.load_chain(context, pair.certificate_pem, pair.key_pem)
    secure = Server(b"", redirect=plain.url)
    listener = serve(secure, context)
    try:
        variables = {"PATH": str(_without(tmp_path, "curl"))} if program == "wget" else {}
        pin = ("--ca-checksum", hashlib.sha256(plain.text).hexdigest())
        result = run(tmp_path, "--server", secure.url, *pin, **variables)
    finally:
        listener.shutdown()
        listener.server_close()
    assert (result.returncode, "302" in result.stderr) == (5, True), result.stdout + result.stderr
    assert secure.requests == [("/cacerts", "")]
    assert plain.requests == []


def _without(directory: Path, missing: str) -> Path:
    """A PATH directory without one program."""
    programs = directory / "programs"
    programs.mkdir()
    for directory_name in ("/usr/bin", "/bin"):
        for program in Path(directory_name).iterdir():
            if program.name != missing and not (programs / program.name).exists():
                (programs / program.name).symlink_to(program)
    return programs


def test_the_powershell_script_requires_tls_too() -> None:
    script = (SCRIPTS / "install.ps1").read_text()
    assert 'StartsWith("https://")' in script
    assert all("--proto" in line for line in script.splitlines() if "& $curl" in line)
