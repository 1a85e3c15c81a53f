"""The Go program uses no credential of a record, and no role of its host, that would act on the manager's host."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from herder.controllers.machines.provision.preparation import NO_HOST_ROLE
from herder.engine.client.kubeconfig import RestConfig
from herder.machine.state import archive
from herder.machine.state.kubernetes import SecretClient
from herder.machine.state.relay import relayed
from tests.support.peers import peer
from tests.unit.machine.state.secret_server import Server

STORE = "/home/machine/.docker/machine"


class Recipient:
    """A server that records requests: that of a user, or the metadata service of a cloud."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.requests.append(f"{self.path} {body.decode()}")
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.http.server_port}"
        self._thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self._thread.join()


@pytest.fixture
def recipient() -> Iterator[Recipient]:
    recipient = Recipient()
    yield recipient
    recipient.close()


def remove(directory: Path, credential: str, **variables: str) -> str:
    """Remove a Google machine whose record has this credential, as a Job does; return the output."""
    driver = {"MachineName": "m", "StorePath": STORE, "Auth": credential, "Project": "p", "Zone": "z"}
    record = {"ConfigVersion": 3, "Driver": driver, "DriverName": "google", "HostOptions": {}, "Name": "m"}
    server = Server()
    files = {f"{STORE}/machines/m/config.json": json.dumps(record).encode()}
    server.change({"extractedConfig": base64.b64encode(archive.pack(files)).decode()})
    environment = {"PATH": os.defpath, "HOME": str(directory), "MACHINE_STORAGE_PATH": STORE, **variables}
    client = SecretClient(RestConfig(server.url), "ns", "state")
    try:
        with relayed(client, directory, store_path=STORE, driver="google") as kubeconfig:
            flags = ("--kubeconfig", str(kubeconfig), "--secret-name", "state", "--secret-namespace", "ns")
            command = [peer("rancher-machine"), *flags, "rm", "-y", "--update-config", "m"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    finally:
        server.close()
    assert done.returncode != 0
    return done.stdout + done.stderr


@pytest.mark.parametrize("source", ["file", "url"])
def test_a_recorded_credential_sends_nothing_of_the_host(source: str, recipient: Recipient, tmp_path: Path) -> None:
    (tmp_path / "of-the-host").write_text("content")
    place: Mapping[str, str] = {"file": str(tmp_path / "of-the-host"), "url": f"http://{recipient.address}/metadata"}
    credential = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"http://{recipient.address}/token",
        "credential_source": {source: place[source]},
    }
    assert "has a credential that is not used: Auth" in remove(tmp_path, json.dumps(credential))
    assert recipient.requests == []


def test_a_machine_without_a_credential_does_not_use_the_role_of_the_host(recipient: Recipient, tmp_path: Path) -> None:
    where = {"GCE_METADATA_HOST": recipient.address}
    output = remove(tmp_path, "", **where, **NO_HOST_ROLE["google"])
    assert "GOOGLE_APPLICATION_CREDENTIALS" in output
    assert recipient.requests == []
