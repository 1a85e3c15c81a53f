"""The secret scan of every test finds leaked secrets, and reports them without repeating them."""

from __future__ import annotations

import base64
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from herder.api.example import CONFIG_MAP, SECRET
from herder.api.identity.authn.hashes import hash_key, new_key
from herder.engine.apiserver.build import assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.client import kubeconfig
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.meta.kinds import Kind
from herder.sim.world import ADMIN
from tests.support.canaries import SCANNER, canary, secrets_in
from tests.support.embedded import Embedded
from tests.support.kube import Authority, RealKube

CANARY = canary("password of nobody")
ENCODED = base64.b64encode(CANARY.encode()).decode()


async def put(client: Client, kind: Kind, name: str, value: str) -> None:
    obj = {"apiVersion": "v1", "kind": kind.kind, "metadata": {"name": name}, "data": {"word": value}}
    await client.create(kind.resource, obj, namespace="default")


# --- patterns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"logged in with {CANARY}!", "the canary password-of-nobody"),
        (f'{{"password":"{CANARY}"}}', "the canary password-of-nobody"),
        *(
            (base64.b64encode(f"{before}{CANARY}".encode()).decode(), "a canary in base64")
            for before in ("", "a", "ab")
        ),
        (f"https://herder.invalid/v3/import/{new_key(os.urandom)}_c-m-1.yaml", "a token"),
        (f"{'.'.join(['eyJhbGciOiJSUzI1NiIsImtpZCI6'] * 2)}.c2lnbmVkLWJ5LW5vYm9keQ", "a service account's token"),
    ],
    ids=["plain", "quoted", "base64", "base64 after one", "base64 after two", "token", "json web token"],
)
def test_secrets_are_recognized_by_their_form(text: str, name: str) -> None:
    assert secrets_in(text.encode()) == [name]


def test_private_keys_are_recognized_but_not_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = (path.read_bytes() for path in authority.issue("somebody"))
    assert secrets_in(key) == ["a private key"]
    assert secrets_in(base64.b64encode(key)) == ["a private key in base64"]
    assert not secrets_in(certificate + base64.b64encode(certificate))


@pytest.mark.parametrize("text", [hash_key(new_key(os.urandom), os.urandom), "x" * 200], ids=["a hash", "filling"])
def test_hashes_and_long_text_are_not_secrets(text: str) -> None:
    assert not secrets_in(text.encode())


# --- scans ------------------------------------------------------------------------------------------------------------


async def test_stopping_a_server_fails_if_a_revision_or_log_has_a_secret(tmp_path: Path) -> None:
    server = Embedded(tmp_path, flags=("--capi-core=external", "--no-machines", "--no-runner")).start()
    client = Client(HttpTransport(kubeconfig.load(server.kubeconfig)), field_manager="tester")
    await put(client, CONFIG_MAP, "removed", CANARY)
    await client.delete(CONFIG_MAP.resource, "removed", namespace="default")
    await put(client, CONFIG_MAP, "harmless", "fleece")
    await put(client, SECRET, "kept", ENCODED)
    await client.list(CONFIG_MAP.resource, namespace="default", labels=f"word={CANARY}")
    await client.close()
    with pytest.raises(AssertionError) as caught:
        server.stop()
    message = str(caught.value)
    assert "the canary password-of-nobody in configmaps default/removed, .data.word" in message
    assert "the canary password-of-nobody in audit.log, line " in message
    assert "harmless" not in message
    assert "default/kept" not in message
    assert CANARY not in message


async def test_secrets_in_objects_of_kube_apiserver_are_found(tmp_path: Path) -> None:
    kube = RealKube(tmp_path).start()
    client = Client(HttpTransport(kubeconfig.load(kube.kubeconfig)), field_manager="tester")
    await put(client, CONFIG_MAP, "leaking", CANARY)
    await put(client, SECRET, "kept", ENCODED)
    await client.close()
    with pytest.raises(AssertionError) as caught:
        kube.stop()
    assert str(caught.value) == (
        "secret leaked:\n  the canary password-of-nobody in /registry/configmaps/default/leaking"
    )
    assert not kube.processes, "processes are stopped in any case"


async def test_servers_in_the_test_process_are_scanned() -> None:
    server = await assemble(None, clock=lambda: datetime.now(UTC), entropy=os.urandom)
    client = Client(InProcess(server, ADMIN), field_manager="tester")
    await put(client, CONFIG_MAP, "leaking", CANARY)
    await put(client, SECRET, "kept", ENCODED)
    await client.close()
    await server.stop()
    found = "the canary password-of-nobody in configmaps default/leaking, .data.word"
    assert set(SCANNER.drain()) == {found}


def test_a_test_that_prints_or_logs_a_secret_fails() -> None:
    report = pytest.TestReport(
        "t", ("t.py", 1, "t"), {}, "passed", None, "call", [("Captured log call", f"got {CANARY}")]
    )
    SCANNER.check_report(report)
    assert report.failed
    assert report.longreprtext == "secret leaked:\n  the canary password-of-nobody in Captured log call"
