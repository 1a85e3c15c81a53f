"""Kubeconfigs are parsed, and unusable ones are rejected with a clear message."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from herder.engine.client import kubeconfig
from herder.engine.client.kubeconfig import KubeconfigError, RestConfig
from herder.engine.client.tls import tls_context


def config(cluster: Any = None, user: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": "https://host:6443/"} | (cluster or {})}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        "current-context": "x",
    } | more


def parse(document: Any, **options: Any) -> RestConfig:
    return kubeconfig.parse(yaml.safe_dump(document), **options)


def test_the_current_context_is_used_unless_another_is_named() -> None:
    other = {"name": "y", "context": {"cluster": "c"}}
    document = config(user={"token": "t"})
    document["contexts"].append(other)
    found = parse(document)
    assert (found.server, found.token, found.namespace) == ("https://host:6443", "t", "ns")
    assert parse(document, context="y").token == ""


def test_values_may_be_inline_or_in_referenced_files(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(b"CA")
    user = {"client-certificate-data": base64.b64encode(b"CERT").decode(), "client-key-data": "S0VZ", "tokenFile": "t"}
    found = parse(config({"certificate-authority": "ca.crt"}, user), base=tmp_path)
    assert (found.ca, found.client_certificate, found.client_key) == (b"CA", b"CERT", b"KEY")
    assert found.token_file == str(tmp_path / "t")


def test_a_generated_kubeconfig_can_be_parsed() -> None:
    built = kubeconfig.build(server="https://h:1", ca=b"CA", token="t", certificate=b"C", key=b"K")
    found = parse(built)
    assert (found.server, found.ca, found.token) == ("https://h:1", b"CA", "t")
    assert (found.client_certificate, found.client_key) == (b"C", b"K")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "empty"),
        ([], "empty, or not a mapping"),
        (config(**{"current-context": ""}), "current-context: no context is chosen"),
        (config(**{"current-context": "z"}), 'contexts: no context named "z"'),
        (config(clusters=[]), 'clusters: no cluster named "c"'),
        (config(clusters="many"), "clusters: must be a list"),
        (config(users=[]), 'users: no user named "u"'),
        (config(users=[{"name": "u", "user": "me"}]), 'users: user "u" must be a mapping'),
        (config({"server": ""}), 'cluster "c" has no server'),
        (config({"certificate-authority-data": "?"}), "certificate-authority-data: not base64"),
        (config({"certificate-authority-data": 1}), "certificate-authority-data: not base64"),
        (config({"certificate-authority": "/nowhere/ca"}), "certificate-authority: /nowhere/ca: No such file"),
        (config({"proxy-url": "socks5://h"}), "proxy-url: socks5: only http and https"),
        (config(user={"exec": {"args": []}}), "users.user.exec.command: required"),
        (config(user={"exec": "run this"}), "users.user.exec.command: required"),
        (config(user={"exec": {"command": "c", "env": [{"name": "n"}]}}), "users.user.exec: args and env"),
        (config(user={"exec": {"command": "c", "args": 5}}), "users.user.exec: args and env"),
    ],
)
def test_an_unusable_kubeconfig_is_rejected_with_the_field(document: Any, message: str) -> None:
    with pytest.raises(KubeconfigError, match="(?s).*" + message.replace("?", r"\?")):
        parse(document)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"a: [", "not YAML"), (b"\xff\xfe", "not text"), (None, "No such file"), (b"- 1", "empty")],
)
def test_an_unreadable_file_is_reported_with_its_path(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KubeconfigError, match=f"(?s)kubeconfig {path}: .*{message}"):
        kubeconfig.load(path)


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        (RestConfig("https://h", ca=b"not a certificate"), "certificate-authority: not a certificate"),
        (RestConfig("https://h", ca=b"\xff"), "certificate-authority: not a certificate"),
        (
            RestConfig("https://h", client_certificate=b"x", client_key=b"y"),
            "client-certificate, client-key: not a pair",
        ),
    ],
)
def test_invalid_certificates_are_rejected(connection: RestConfig, message: str) -> None:
    with pytest.raises(KubeconfigError, match=message):
        tls_context(connection)


def test_in_cluster_config_requires_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubeconfigError, match="not in a pod"):
        kubeconfig.in_cluster()


# --- untrusted kubeconfigs --------------------------------------------------------------------------------------


def test_inline_values_are_accepted_in_untrusted_kubeconfigs() -> None:
    user = {"token": "t", "exec": None, "client-certificate-data": "Q0VSVA==", "client-key-data": "S0VZ"}
    found = kubeconfig.parse_untrusted(yaml.safe_dump(config({"certificate-authority-data": "Q0E="}, user)))
    assert (found.token, found.ca, found.client_certificate, found.client_key) == ("t", b"CA", b"CERT", b"KEY")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (config(user={"exec": {"command": "sh"}}), "users.user.exec: not allowed in this kubeconfig"),
        (config(user={"auth-provider": {"name": "oidc"}}), "users.user.auth-provider: not allowed in this kubeconfig"),
        (config(user={"tokenFile": "/etc/shadow"}), "users.user.tokenFile: not allowed in this kubeconfig"),
        (config(user={"client-key": "/etc/key"}), "users.user.client-key: not allowed in this kubeconfig"),
        (
            config(user={"client-certificate": "/etc/crt"}),
            "users.user.client-certificate: not allowed in this kubeconfig",
        ),
        (
            config({"certificate-authority": "/etc/ca"}),
            "clusters.cluster.certificate-authority: not allowed in this kubeconfig",
        ),
        (
            config(users=[{"name": "v", "user": {"exec": {"command": "sh"}}}]),
            "users.user.exec: not allowed in this kubeconfig",
        ),
        (config(users="many"), "users: must be a list"),
        (config(users=[7, {"name": "u", "user": 7}]), "users: the user must be a mapping"),
    ],
)
def test_untrusted_kubeconfigs_cannot_access_local_files_or_run_commands(document: Any, message: str) -> None:
    with pytest.raises(KubeconfigError, match=message):
        kubeconfig.parse_untrusted(yaml.safe_dump(document))


@pytest.mark.parametrize(
    "text",
    [
        "token: s3cret\n  : [",
        "{s3cret",
        "- s3cret",
        "s3cret",
        "\ts3cret: 1",
        "current-context: s3cret",
        "{current-context: c, contexts: [{name: c, context: {cluster: s3cret}}]}",
        "{current-context: c, contexts: [{name: c, context: {cluster: s3cret}}], clusters: [{name: s3cret}]}",
        "{current-context: s3cret, contexts: [{name: s3cret, context: 7}]}",
    ],
)
def test_errors_do_not_repeat_the_content_of_untrusted_kubeconfigs(text: str) -> None:
    with pytest.raises(KubeconfigError) as raised:
        kubeconfig.parse_untrusted(text)
    assert "s3cret" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("[" * 200_000, "levels deep"),  # composing it would overflow the stack of the process
        ("{a: " * 50_000, "levels deep"),
        ("- " * 50_000, "levels deep"),
        ("? " * 50_000, "levels deep"),
        ("a: [" + "1," * 100_000 + "]", "tokens"),
        ("a: " + ":".join(["59"] * 50_000), "a number of more"),  # in base 60, by the square of its length
        ("a: !!int '" + ":".join(["59"] * 50_000) + "'", "a number of more"),
        ("a: " + "9" * 5_000, "a number of more"),
        ("a: '" + "x" * 300_000 + "'", "bytes"),
        ("a: 2026-99-99", "not YAML"),
        ("a: !!float x", "not YAML"),
    ],
)
def test_an_expensive_yaml_text_is_rejected_before_it_is_loaded(text: str, limit: str) -> None:
    """Every user with the edit role in a namespace can create Secrets that are read as kubeconfigs."""
    with pytest.raises(KubeconfigError, match=limit):
        kubeconfig.parse_untrusted(text)


def test_errors_do_not_contain_the_proxy_password() -> None:
    with pytest.raises(KubeconfigError) as raised:
        kubeconfig.parse_untrusted(yaml.safe_dump(config({"proxy-url": "socks5://me:s3cret@h"})))
    assert "s3cret" not in str(raised.value)
