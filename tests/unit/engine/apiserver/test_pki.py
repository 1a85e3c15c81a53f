from __future__ import annotations

import asyncio
import base64
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from herder.engine.apiserver.pki import Pki, PkiError

NOW = datetime.now(UTC)


def load(directory: Path | None, *, now: datetime = NOW, hosts: tuple[str, ...] = ()) -> Pki:
    return Pki.load_or_create(directory, now=now, hosts=hosts)


def test_keys_and_certificates_are_created_once_and_reused(tmp_path: Path) -> None:
    first, second = load(tmp_path / "pki"), load(tmp_path / "pki")
    for part in ("authority", "serving", "admin"):
        assert getattr(first, part).certificate == getattr(second, part).certificate
        assert getattr(first, part).key_pem == getattr(second, part).key_pem
    assert first.service_accounts.private_numbers() == second.service_accounts.private_numbers()


def test_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    load(tmp_path)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {
        "ca.crt": 0o644, "ca.key": 0o600, "serving.crt": 0o644, "serving.key": 0o600,
        "admin.crt": 0o644, "admin.key": 0o600, "service-accounts.key": 0o600,
    }  # fmt: skip


def test_certificates_are_renewed_before_they_expire_by_the_same_authority(tmp_path: Path) -> None:
    first = load(tmp_path)
    soon = load(tmp_path, now=NOW + timedelta(days=200))
    assert soon.serving.certificate == first.serving.certificate
    later = load(tmp_path, now=NOW + timedelta(days=300))
    assert later.authority.certificate == first.authority.certificate
    assert later.serving.certificate != first.serving.certificate
    assert later.admin.certificate != first.admin.certificate
    assert later.serving.certificate.not_valid_after_utc > NOW + timedelta(days=600)


def test_a_new_server_name_issues_a_new_certificate(tmp_path: Path) -> None:
    first = load(tmp_path)
    second = load(tmp_path, hosts=("herder.example.com", "192.0.2.7"))
    assert second.serving.certificate != first.serving.certificate
    names = second.serving.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"herder.example.com", "localhost", "kubernetes.default.svc"} <= set(names.get_values_for_type(x509.DNSName))
    assert {"192.0.2.7", "127.0.0.1", "::1"} <= {str(ip) for ip in names.get_values_for_type(x509.IPAddress)}


def test_certificates_of_another_ca_are_not_served(tmp_path: Path) -> None:
    first = load(tmp_path)
    (tmp_path / "ca.crt").unlink()
    (tmp_path / "ca.key").unlink()
    second = load(tmp_path)
    assert second.authority.certificate != first.authority.certificate
    second.serving.certificate.verify_directly_issued_by(second.authority.certificate)


def test_an_interrupted_write_is_recovered(tmp_path: Path) -> None:
    load(tmp_path)
    (tmp_path / "serving.crt").unlink()
    (tmp_path / "admin.key.new").write_text("half")
    assert load(tmp_path).serving.certificate


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("ca.key", "rubbish", "not a PEM private key"),
        ("ca.crt", "rubbish", "not a PEM certificate"),
    ],
)
def test_corrupt_files_are_reported_and_not_replaced(tmp_path: Path, file: str, content: str, expected: str) -> None:
    load(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(PkiError, match=expected) as error:
        load(tmp_path)
    assert file in str(error.value)
    assert (tmp_path / file).read_text() == content


def test_a_certificate_of_another_key_is_rejected(tmp_path: Path) -> None:
    load(tmp_path / "a")
    load(tmp_path / "b")
    (tmp_path / "a" / "ca.key").write_bytes((tmp_path / "b" / "ca.key").read_bytes())
    with pytest.raises(PkiError, match="does not belong to"):
        load(tmp_path / "a")


def test_an_expired_ca_is_reported(tmp_path: Path) -> None:
    load(tmp_path)
    with pytest.raises(PkiError, match="expired"):
        load(tmp_path, now=NOW + timedelta(days=4000))


def test_the_kubeconfig_embeds_all_certificates() -> None:
    pki = load(None)
    config = pki.admin_kubeconfig("https://127.0.0.1:6443")
    [cluster], [user] = config["clusters"], config["users"]
    assert cluster["cluster"]["server"] == "https://127.0.0.1:6443"
    assert base64.b64decode(cluster["cluster"]["certificate-authority-data"]) == pki.authority.certificate_pem
    assert base64.b64decode(user["user"]["client-key-data"]) == pki.admin.key_pem
    assert config["current-context"] == config["contexts"][0]["name"]


async def test_a_client_with_the_admin_certificate_can_connect(tmp_path: Path) -> None:
    pki = load(tmp_path)
    seen: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(str(writer.get_extra_info("peercert").get("subject")))
        await reader.readline()
        writer.write(b"hello\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=pki.server_context())
    port = server.sockets[0].getsockname()[1]
    context = ssl.create_default_context(cadata=pki.authority.certificate_pem.decode())
    context.load_cert_chain(tmp_path / "admin.crt", tmp_path / "admin.key")
    for host in ("localhost", "127.0.0.1"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
        writer.write(b"hi\n")
        assert await reader.readline() == b"hello\n"
        writer.close()
        await writer.wait_closed()
    server.close()
    await server.wait_closed()
    assert "system:masters" in seen[0]
    assert "kubernetes-admin" in seen[0]
