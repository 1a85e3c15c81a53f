"""The state Secret as the Go program receives it: only records of its own driver, at their paths."""

from __future__ import annotations

import base64
import io
import json
import socket
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from herder.engine.client.kubeconfig import RestConfig
from herder.machine.errors import MachineError
from herder.machine.state import archive
from herder.machine.state.kubernetes import SecretClient
from herder.machine.state.relay import checked, relayed
from tests.unit.machine.state.secret_server import Server

STORE = "/store"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def client_of(server: Server) -> SecretClient:
    return SecretClient(RestConfig(server.url), "ns", "state")


def packed(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path, text in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(text.encode()), 0o755
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def config(**fields: object) -> str:
    return json.dumps({"ConfigVersion": 3, "Driver": {}, "DriverName": "none", "Name": "m", **fields})


def test_a_record_keeps_its_files_and_paths() -> None:
    files = {f"{STORE}/machines/m/config.json": config(), f"{STORE}/machines/m/id_rsa": "key"}
    filtered = archive.unpack(checked(packed(files), STORE, "none"))
    assert {path: data.decode() for path, data in filtered.items()} == files


@pytest.mark.parametrize(
    "path", ["/tmp/program", "/etc/profile", f"{STORE}/machines/m/../../../tmp/program", "tmp/program"]
)
def test_files_outside_of_the_machine_are_omitted(path: str) -> None:
    files = {f"{STORE}/machines/m/config.json": config(), path: "#!/bin/sh"}
    assert list(archive.unpack(checked(packed(files), STORE, "none"))) == [f"{STORE}/machines/m/config.json"]


@pytest.mark.parametrize("name", ["/tmp/program", "./program", "virtualbox"])
def test_a_record_of_another_driver_is_rejected(name: str) -> None:
    with pytest.raises(MachineError, match="which is not that of this Job"):
        checked(packed({f"{STORE}/machines/m/config.json": config(DriverName=name)}), STORE, "none")


@pytest.mark.parametrize("name", ["/tmp/program", "./program", "a/../b", ""])
def test_a_job_without_a_driver_accepts_no_driver_path(name: str) -> None:
    with pytest.raises(MachineError, match="which is not that of this Job"):
        checked(packed({f"{STORE}/machines/m/config.json": config(DriverName=name)}), STORE, "")


@pytest.mark.parametrize("field", ["drivername", "DRIVERNAME", "driverName"])
def test_other_spellings_of_the_driver_field_are_removed(field: str) -> None:
    """Go matches JSON field names case-insensitively."""
    filtered = checked(packed({f"{STORE}/machines/m/config.json": config(**{field: "/tmp/program"})}), STORE, "none")
    assert field not in json.loads(archive.unpack(filtered)[f"{STORE}/machines/m/config.json"])


_FEDERATED = json.dumps({"type": "external_account", "credential_source": {"file": "/etc/hosts"}})
_WITH_COMMAND = "clusters: []\nusers: [{name: u, user: {exec: {command: id}}}]"


@pytest.mark.parametrize(
    ("driver", "field", "content"),
    [
        ("google", "Auth", _FEDERATED),
        ("google", "auth", _FEDERATED),
        ("google", "AUTH", base64.b64encode(_FEDERATED.encode()).decode()),
        ("google", "Auth", "/etc/hosts"),
        ("google", "Auth", [_FEDERATED]),
        ("harvester", "KubeConfigContent", _WITH_COMMAND),
        ("harvester", "\u212aubeConfigContent", _WITH_COMMAND),
    ],
)
def test_a_record_with_a_credential_that_acts_on_the_host_is_rejected(driver: str, field: str, content: object) -> None:
    """Admission checks credentials of Secrets and machine configs. Editors of the state Secret write the record."""
    record = config(DriverName=driver, Driver={"MachineName": "m", field: content})
    with pytest.raises(MachineError, match=f"credential that is not used: {field}: "):
        checked(packed({f"{STORE}/machines/m/config.json": record}), STORE, driver)
    with pytest.raises(MachineError, match="credential that is not used"):
        checked(packed({f"{STORE}/machines/m/config.json": record}), STORE, "")  # a Job of an earlier version


@pytest.mark.parametrize(
    ("driver", "field", "content"),
    [
        ("google", "Auth", ""),
        ("google", "Auth", "/path/to/machine/files/authEncodedJson"),
        ("google", "Auth", '{"type": "service_account"}'),
        ("google", "Auth", base64.b64encode(b'{"type": "service_account"}').decode()),
        ("harvester", "KubeConfigContent", ""),
        ("digitalocean", "Auth", _FEDERATED),
    ],
)
def test_a_record_with_another_credential_reaches_the_driver(driver: str, field: str, content: str) -> None:
    record = config(DriverName=driver, Driver={"MachineName": "m", field: content})
    assert checked(packed({f"{STORE}/machines/m/config.json": record}), STORE, driver)


def test_other_users_of_the_host_cannot_read_the_secret(server: Server, tmp_path: Path) -> None:
    with relayed(client_of(server), tmp_path, store_path=STORE, driver="none") as kubeconfig:
        assert kubeconfig.stat().st_mode & 0o777 == 0o600
        url = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        with urllib.request.urlopen(f"{url}/api/v1/namespaces/ns/secrets/state") as response:
            assert "data" in json.load(response)
        for other in (f"{url}/api/v1/namespaces/ns/secrets/other", url.rpartition("/")[0]):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(f"{other}/api/v1/namespaces/ns/secrets/state")


def test_an_idle_connection_of_another_program_of_the_host_does_not_block_the_job(
    server: Server, tmp_path: Path
) -> None:
    with relayed(client_of(server), tmp_path, store_path=STORE, driver="none") as kubeconfig:
        url = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        address = urlsplit(url)
        with socket.create_connection((address.hostname, address.port)) as idle:
            idle.sendall(b"GET ")
            with urllib.request.urlopen(f"{url}/api/v1/namespaces/ns/secrets/state", timeout=10) as response:
                assert "data" in json.load(response)
