"""Kubeconfigs: what they say, and clear words for those that cannot be used."""

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


def test_the_current_context_is_taken_unless_another_is_named() -> None:
    other = {"name": "y", "context": {"cluster": "c"}}
    document = config(user={"token": "t"})
    document["contexts"].append(other)
    found = parse(document)
    assert (found.server, found.token, found.namespace) == ("https://host:6443", "t", "ns")
    assert parse(document, context="y").token == ""


def test_values_may_stand_in_the_file_or_in_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(b"CA")
    user = {"client-certificate-data": base64.b64encode(b"CERT").decode(), "client-key-data": "S0VZ", "tokenFile": "t"}
    found = parse(config({"certificate-authority": "ca.crt"}, user), base=tmp_path)
    assert (found.ca, found.client_certificate, found.client_key) == (b"CA", b"CERT", b"KEY")
    assert found.token_file == str(tmp_path / "t")


def test_what_we_build_we_can_read() -> None:
    built = kubeconfig.build(server="https://h:1", ca=b"CA", token="t", certificate=b"C", key=b"K")
    found = parse(built)
    assert (found.server, found.ca, found.token) == ("https://h:1", b"CA", "t")
    assert (found.client_certificate, found.client_key) == (b"C", b"K")


@pytest.mark.parametrize(
    ("document", "told"),
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
def test_one_that_cannot_be_used_is_refused_naming_the_field(document: Any, told: str) -> None:
    with pytest.raises(KubeconfigError, match="(?s).*" + told.replace("?", r"\?")):
        parse(document)


@pytest.mark.parametrize(
    ("content", "told"), [(b"a: [", "not YAML"), (b"\xff\xfe", "not text"), (None, "No such file"), (b"- 1", "empty")]
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, told: str) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KubeconfigError, match=f"(?s)kubeconfig {path}: .*{told}"):
        kubeconfig.load(path)


@pytest.mark.parametrize(
    ("connection", "told"),
    [
        (RestConfig("https://h", ca=b"not a certificate"), "certificate-authority: not a certificate"),
        (RestConfig("https://h", ca=b"\xff"), "certificate-authority: not a certificate"),
        (
            RestConfig("https://h", client_certificate=b"x", client_key=b"y"),
            "client-certificate, client-key: not a pair",
        ),
    ],
)
def test_certificates_that_are_none_are_refused(connection: RestConfig, told: str) -> None:
    with pytest.raises(KubeconfigError, match=told):
        tls_context(connection)


def test_outside_a_pod_there_is_no_connection_of_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubeconfigError, match="not in a pod"):
        kubeconfig.in_cluster()


# --- kubeconfigs that others wrote ------------------------------------------------------------------------------


def test_what_the_text_itself_holds_is_accepted_from_others() -> None:
    user = {"token": "t", "exec": None, "client-certificate-data": "Q0VSVA==", "client-key-data": "S0VZ"}
    found = kubeconfig.parse_untrusted(yaml.safe_dump(config({"certificate-authority-data": "Q0E="}, user)))
    assert (found.token, found.ca, found.client_certificate, found.client_key) == ("t", b"CA", b"CERT", b"KEY")


@pytest.mark.parametrize(
    ("document", "told"),
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
        (config(users=[7, {"name": "u", "user": 7}]), 'user "u" must be a mapping'),
    ],
)
def test_nothing_that_others_wrote_reaches_this_machine(document: Any, told: str) -> None:
    with pytest.raises(KubeconfigError, match=told):
        kubeconfig.parse_untrusted(yaml.safe_dump(document))


@pytest.mark.parametrize("text", ["token: s3cret\n  : [", "{s3cret", "- s3cret", "s3cret", "\ts3cret: 1"])
def test_what_others_wrote_is_not_repeated_in_words_about_it(text: str) -> None:
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
def test_a_text_that_costs_too_much_is_refused_before_it_is_loaded(text: str, limit: str) -> None:
    """Any editor of a namespace writes Secrets there that are named as kubeconfigs."""
    with pytest.raises(KubeconfigError, match=limit):
        kubeconfig.parse_untrusted(text)


def test_a_proxys_password_is_not_repeated() -> None:
    with pytest.raises(KubeconfigError) as raised:
        kubeconfig.parse_untrusted(yaml.safe_dump(config({"proxy-url": "socks5://me:s3cret@h"})))
    assert "s3cret" not in str(raised.value)
