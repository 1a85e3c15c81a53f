"""Loopback relay of the state Secret for rancher-machine, which validates its contents.

rancher-machine unpacks the archive to any path and runs the file that a record names as its driver. Some drivers run
commands and send files that a credential in the record names. Editors of Secrets control all of this, and must not be
able to run programs on the Job's host, or read its files. So it gets a repacked archive with the files of one machine,
in their place, and no record with such a credential.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from herder.api.machines.drivers.documents import recorded_document_problem
from herder.api.machines.names import STATE_KEY
from herder.machine.errors import MachineError
from herder.machine.state import archive, record
from herder.machine.state.kubernetes import Conflict, Secret, SecretClient
from herder.machine.state.saved_machine import by_machine

_MOST_BYTES = 4 << 20  # more than the API server accepts
_IDLE_SECONDS = 30
_ADVICE = "restore the state Secret from a backup, or remove the server at its provider and then the Secret"


def checked(data: bytes, store_path: str, driver: str) -> bytes:
    """Return the archive with only the records of this driver; empty if there are none."""
    files: dict[str, bytes] = {}
    for name, found in by_machine(archive.unpack(data)).items():
        known = record.read(name, found)
        record.check_driver(known, driver)
        if why := recorded_document_problem(known.driver, known.config):
            raise MachineError(f'the record of machine "{name}" has a credential that is not used: {why}', _ADVICE)
        config = {key: value for key, value in json.loads(found[record.CONFIG]).items() if not _stands_for_another(key)}
        found[record.CONFIG] = json.dumps(config, ensure_ascii=False).encode()
        files |= {f"{store_path}/machines/{name}/{path}": each for path, each in found.items()}
    return archive.pack(files) if files else b""


_READ_FIELDS = {name.casefold(): name for name in ("ConfigVersion", "Driver", "DriverName", "Name", "RawDriver")}


def _stands_for_another(key: str) -> bool:
    """Go matches field names case-insensitively, and takes the last."""
    return _READ_FIELDS.get(key.casefold(), key) != key


@contextlib.contextmanager
def relayed(client: SecretClient, directory: Path, *, store_path: str, driver: str) -> Iterator[Path]:
    """Yield the kubeconfig with which rancher-machine reaches the Secret."""
    # The path is the credential: client-go sends no tokens without TLS.
    prefix = f"/{secrets.token_urlsafe(32)}"
    path = f"{prefix}/api/v1/namespaces/{client.namespace}/secrets/{client.name}"

    class Handler(BaseHTTPRequestHandler):
        timeout = _IDLE_SECONDS

        def do_GET(self) -> None:
            self._answer(lambda: _with_checked(client.read(), store_path, driver))

        def do_PUT(self) -> None:
            self._answer(self._replace)

        def _replace(self) -> Secret:
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(min(size, _MOST_BYTES))
            return client.replace_encoded(body, self.headers.get("Content-Type") or "application/json")

        def _answer(self, act: Callable[[], Secret]) -> None:
            if not hmac.compare_digest(self.path.partition("?")[0].encode(), path.encode()):
                self._send(403, _status(403, "Forbidden", "one Secret is served here, to the program of one Job"))
                return
            try:
                with contextlib.closing(client):  # do not keep a connection open while a machine is created
                    found = act()
                self._send(200, found)
            except Conflict:
                self._send(409, _status(409, "Conflict", "the Secret has changed; read it again"))
            except MachineError as error:
                self._send(400, _status(400, "BadRequest", str(error)))

        def _send(self, code: int, content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Disabled: this output is the machine's log."""

    # A thread for each connection: programs of the host that know only the port must not keep the Job waiting.
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        kubeconfig = directory / "kubeconfig"
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(json.dumps(_kubeconfig(f"http://127.0.0.1:{server.server_port}{prefix}")))
        yield kubeconfig
    finally:
        server.shutdown()
        server.server_close()


def _with_checked(secret: Secret, store_path: str, driver: str) -> Secret:
    data = dict(secret.get("data") or {})
    if kept := data.get(STATE_KEY):
        data[STATE_KEY] = base64.b64encode(checked(base64.b64decode(kept), store_path, driver)).decode()
        if not data[STATE_KEY]:
            del data[STATE_KEY]
    return {**secret, "data": data}


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


def _kubeconfig(server: str) -> dict[str, Any]:
    name = "relay"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": ""}}],
        "current-context": name,
    }
