"""Commands for logins, tokens and kubeconfigs, and kubectl with the kubeconfigs that they write."""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import ssl
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from herder.api.management.commands import ca_checksum
from herder.cli.auth.kubeconfig_merge import merge_into
from tests.support.canaries import canary
from tests.support.embedded import HERDER, Embedded
from tests.support.manager.registration import printed_registration
from tests.support.peers import peer

PASSWORD = canary("password of the first user")
OTHER = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "home", "cluster": {"server": "https://home.example:6443"}}],
    "users": [{"name": "me", "user": {"token": canary("token of another cluster")}}],
    "contexts": [{"name": "home", "context": {"cluster": "home", "user": "me", "namespace": "garden"}}],
    "current-context": "home",
    "preferences": {"colors": True},
    "extensions": [{"name": "a-plugin", "extension": {"kept": "yes"}}],
}

FORBIDDEN_FIELDS: dict[str, Any] = {
    "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "interactiveMode": "Never"},
    "tokenFile": "/etc/hostname",
    "client-key": "/etc/hostname",
    "proxy-url": "http://proxy.example",
}


@dataclass
class Shell:
    """A user's shell with its own home directory."""

    server: Embedded
    home: Path

    @property
    def config(self) -> Path:
        return self.home / ".kube" / "config"

    def environment(self, **extra: str) -> dict[str, str]:
        removed = ("KUBECONFIG", "HERDER_DATA_DIR", "XDG_STATE_HOME")
        clean = {name: value for name, value in os.environ.items() if name not in removed}
        return clean | {"HOME": str(self.home), "HERDER_DATA_DIR": str(self.home / "none")} | extra

    def run(self, *arguments: str | Path, stdin: str = "", **extra: str) -> subprocess.CompletedProcess[str]:
        environment = self.environment(**extra)
        return subprocess.run(
            arguments, input=stdin, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    def herder(self, *arguments: str | Path, stdin: str = "", **extra: str) -> str:
        result = self.run(HERDER, *arguments, stdin=stdin, **extra)
        assert result.returncode == 0, f"herder {arguments[0]}: {result.stderr}"
        return result.stdout

    def expect_failure(self, *arguments: str | Path, **extra: str) -> str:
        result = self.run(HERDER, *arguments, **extra)
        assert result.returncode in (1, 2), f"{arguments}: exit {result.returncode}"
        assert "Traceback" not in result.stderr
        assert not result.stdout
        return result.stderr

    def kubectl(self, *arguments: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
        return self.run(peer("kubectl"), *arguments, **extra)

    def log_in(self) -> None:
        checksum = ca_checksum(_authority(self.server))
        flags = ("-u", "admin", "--password-stdin", "--ca-checksum", checksum)
        self.herder("login", self.server.url, *flags, stdin=PASSWORD + "\n")

    def kubeconfig(self) -> dict[str, Any]:
        parsed: dict[str, Any] = yaml.safe_load(self.config.read_text())
        return parsed


def _authority(server: Embedded) -> str:
    cluster = yaml.safe_load(server.kubeconfig.read_text())["clusters"][0]["cluster"]
    return base64.b64decode(cluster["certificate-authority-data"]).decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    flags = ("--gateway", "--no-runner", "--no-machines", "--capi-core=external")
    with Embedded(tmp_path_factory.mktemp("manager"), flags=flags) as server:
        administrator = os.environ | {"KUBECONFIG": str(server.kubeconfig)}
        change: list[str | Path] = [HERDER, "users", "password", "admin", "--password-stdin"]
        deadline = time.monotonic() + 60
        while True:  # until the first user exists
            result = subprocess.run(
                change, input=PASSWORD + "\n", env=administrator, capture_output=True, text=True, check=False
            )
            if not result.returncode:
                break
            assert time.monotonic() < deadline, result.stderr
            time.sleep(0.2)
        yield server


@pytest.fixture
def shell(server: Embedded, tmp_path: Path) -> Shell:
    return Shell(server, tmp_path)


@pytest.fixture(scope="module")
def logged_in_home(server: Embedded, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    shell = Shell(server, tmp_path_factory.mktemp("home"))
    shell.log_in()
    return shell


@pytest.fixture
def session(logged_in_home: Shell, shell: Shell) -> Shell:
    """A shell of a user who is logged in."""
    shutil.copytree(logged_in_home.home, shell.home, dirs_exist_ok=True)
    return shell


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- tokens ---------------------------------------------------------------------------------------------------------


def test_a_token_is_printed_once_and_valid_until_revoked(session: Shell) -> None:
    token = session.herder("token", "create", "--ttl", "2h", "--description", "for the shepherd").strip()
    name = token.removeprefix("ext/").partition(":")[0]
    listed = session.herder("token", "list")
    assert name in listed
    assert "for the shepherd" in listed
    assert token.partition(":")[2] not in listed
    assert "namespace/default" in kubectl_with_token(session, token).stdout
    assert f"{name} revoked" in session.herder("token", "revoke", name)
    assert name not in session.herder("token", "list")
    assert "You must be logged in" in kubectl_with_token(session, token).stderr


def test_a_token_for_one_cluster_is_valid_only_there(session: Shell) -> None:
    token = session.herder("token", "create", "--cluster", "local").strip()
    assert "namespace/default" in kubectl_with_token(session, token, "/k8s/clusters/local").stdout
    assert "You must be logged in" in kubectl_with_token(session, token).stderr


def kubectl_with_token(shell: Shell, token: str, path: str = "") -> subprocess.CompletedProcess[str]:
    entry = shell.kubeconfig()
    cluster = {**entry["clusters"][0]["cluster"], "server": shell.server.url + path}
    config = {**OTHER, "clusters": [{"name": "home", "cluster": cluster}]}
    config["users"] = [{"name": "me", "user": {"token": token}}]
    file = shell.home / "holder"
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(config))
    return shell.kubectl("--kubeconfig", file, "get", "namespaces", "-o", "name")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create", "--ttl", "soon"), "'--ttl': must be a duration"),
        (("create", "--cluster", "nowhere"), 'cluster "nowhere" not found'),
        (("revoke",), "Missing argument 'NAME...'"),
        (("revoke", "token-unknown"), "not found"),
    ],
)
def test_errors_of_token_commands(session: Shell, arguments: tuple[str, ...], message: str) -> None:
    assert message in session.expect_failure("token", *arguments)


def test_tokens_need_a_login(shell: Shell) -> None:
    """The administrator by certificate is not a user of the manager."""
    for arguments in (("list",), ("create",)):
        assert "herder login" in shell.expect_failure("token", *arguments, "--kubeconfig", shell.server.kubeconfig)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_tokens_in_urls_are_not_logged(session: Shell, method: str) -> None:
    """Also in mistyped URLs. When the server stops, everything it wrote is searched for tokens."""
    token = session.herder("token", "create", "--ttl", "5m").strip().partition(":")[2]
    paths = (f"/v3/import/{token}_c-m-barn.yaml", f"/v3/imports/{token}", f"/{token}", f"/api?token={token}")
    address = session.server.url.removeprefix("https://")
    authority = ssl.create_default_context(cadata=_authority(session.server))
    for path in paths:
        connection = http.client.HTTPSConnection(address, timeout=30, context=authority)
        connection.request(method, path)
        assert connection.getresponse().status >= 400
        connection.close()


# --- kubeconfigs ----------------------------------------------------------------------------------------------------


def test_a_login_is_merged_into_an_existing_kubeconfig_with_mode_0600(shell: Shell) -> None:
    shell.config.parent.mkdir()
    shell.config.write_text(yaml.safe_dump(OTHER))
    shell.log_in()
    kubeconfig = shell.kubeconfig()
    assert _without(kubeconfig, "herder-127.0.0.1") == {**OTHER, "current-context": "herder-127.0.0.1"}
    assert mode(shell.config) == 0o600
    assert "namespace/default" in shell.kubectl("get", "namespaces", "-o", "name").stdout


def _without(config: dict[str, Any], entry: str) -> dict[str, Any]:
    sections = ("clusters", "users", "contexts")
    return config | {name: [each for each in config[name] if each["name"] != entry] for name in sections}


def test_a_merged_kubeconfig_becomes_current_only_on_request(session: Shell) -> None:
    before = session.kubeconfig()
    session.herder("kubeconfig", "local", "--merge")
    kubeconfig = session.kubeconfig()
    assert kubeconfig["current-context"] == before["current-context"]
    assert [each["name"] for each in kubeconfig["contexts"]] == ["herder-127.0.0.1", "local"]
    assert "namespace/default" in session.kubectl("--context", "local", "get", "namespaces", "-o", "name").stdout
    session.herder("kubeconfig", "local", "--merge", "--use")
    assert session.kubeconfig()["current-context"] == "local"
    assert mode(session.config) == 0o600
    assert not list(session.config.parent.glob(".*")), "no temporary files remain"
    assert not list(session.config.parent.glob("*.lock"))


def test_the_name_of_a_cluster_does_not_replace_another_entry(session: Shell) -> None:
    """Owners choose the names of their clusters, and could choose that of the manager's entry."""
    patch = ("patch", "clusters.management.cattle.io", "local", "--type=merge", "-p")
    change = '{"spec":{"displayName":"%s"}}'
    assert session.kubectl(*patch, change % "herder-127.0.0.1").returncode == 0
    before = session.config.read_text()
    try:
        assert "points to" in session.expect_failure("kubeconfig", "local", "--merge")
        assert session.config.read_text() == before
    finally:
        session.config.write_text(before)
        session.kubectl(*patch, change % "local")


def test_a_merged_user_does_not_replace_another(session: Shell) -> None:
    me = {"name": "admin", "user": {"token": canary("token of an admin elsewhere")}}
    session.config.write_text(yaml.safe_dump(session.kubeconfig() | {"users": [*session.kubeconfig()["users"], me]}))
    session.herder("kubeconfig", "local", "--merge")
    assert me in session.kubeconfig()["users"]
    assert "namespace/default" in session.kubectl("--context", "local", "get", "namespaces", "-o", "name").stdout


@pytest.mark.parametrize("entry", [*FORBIDDEN_FIELDS])
def test_kubeconfig_secrets_with_commands_files_or_proxies_are_rejected(shell: Shell, entry: str) -> None:
    """Users who may edit Secrets of the namespace can write it, and administrators by certificate receive it."""
    administrator = ("--kubeconfig", shell.server.kubeconfig)
    name = f"croft-{entry.lower()}"
    user = {"token": "mine"} | ({entry: FORBIDDEN_FIELDS[entry]} if entry != "proxy-url" else {})
    cluster = {"server": "https://croft.example"} | ({entry: FORBIDDEN_FIELDS[entry]} if entry == "proxy-url" else {})
    config = {
        "clusters": [{"name": "croft", "cluster": cluster}],
        "users": [{"name": "croft", "user": user}],
        "contexts": [{"name": "croft", "context": {"cluster": "croft", "user": "croft"}}],
        "current-context": "croft",
    }
    _create_cluster(shell, name, config)
    assert entry in shell.expect_failure("kubeconfig", name, *administrator)


def test_a_kubeconfig_secret_replaces_no_other_entry(shell: Shell) -> None:
    administrator = ("--kubeconfig", shell.server.kubeconfig)
    config = {
        "clusters": [{"name": "croft", "cluster": {"server": "https://croft.example"}}],
        "users": [{"name": name, "user": {"token": name}} for name in ("croft", "kubernetes-admin")],
        "contexts": [{"name": "croft", "context": {"cluster": "croft", "user": "croft"}}],
        "current-context": "croft",
    }
    _create_cluster(shell, "croft-more", config)
    output = yaml.safe_load(shell.herder("kubeconfig", "croft-more", *administrator))
    assert output["users"] == [{"name": "croft-more", "user": {"token": "croft"}}]


def _create_cluster(shell: Shell, name: str, config: dict[str, Any]) -> None:
    """Create a Cluster with the kubeconfig Secret that other programs use."""
    kubectl = ("--kubeconfig", shell.server.kubeconfig, "-n", "fleet-default")
    meta = {"name": f"{name}-kubeconfig", "namespace": "fleet-default"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "cluster.x-k8s.io/secret"}
    cluster = {"apiVersion": "provisioning.cattle.io/v1", "kind": "Cluster", "metadata": {"name": name}, "spec": {}}
    objects = [{**secret, "stringData": {"value": yaml.safe_dump(config)}}, cluster]
    result = shell.run(peer("kubectl"), *kubectl, "apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
    assert result.returncode == 0, result.stderr
    wait_for_id = ("wait", f"clusters.provisioning.cattle.io/{name}", "--for=jsonpath={.status.clusterName}")
    assert shell.kubectl(*kubectl, *wait_for_id).returncode == 0


def test_a_merged_context_becomes_current_if_none_is(session: Shell) -> None:
    config = session.kubeconfig() | {"current-context": ""}
    (session.home / "manager").write_text(session.config.read_text())
    session.config.write_text(yaml.safe_dump(config))
    output = session.herder("kubeconfig", "local", "--kubeconfig", session.home / "manager", "--merge")
    assert "current context" not in output
    assert merge_into(session.config, yaml.safe_load((session.home / "manager").read_text()), use=False)
    assert session.kubeconfig()["current-context"] == "herder-127.0.0.1"


def test_merging_follows_a_symlink_and_keeps_it(session: Shell) -> None:
    elsewhere = session.home / "dotfiles"
    session.config.rename(elsewhere)
    session.config.symlink_to(elsewhere)
    session.herder("kubeconfig", "local", "--merge")
    assert session.config.is_symlink()
    assert "local" in elsewhere.read_text()
    assert mode(elsewhere) == 0o600


@pytest.mark.parametrize("content", ["[1, 2]", "clusters: {}", "a: [", "contexts: [word]"])
def test_an_invalid_kubeconfig_is_not_changed(session: Shell, content: str) -> None:
    broken = session.home / "broken"
    broken.write_text(content)
    login = ("login", session.server.url, "-u", "admin", "--password-stdin", "--ca-checksum")
    result = session.run(
        HERDER, *login, ca_checksum(_authority(session.server)), "--kubeconfig", broken, stdin=PASSWORD + "\n"
    )
    assert result.returncode == 1
    assert "not a valid kubeconfig; it was not changed" in result.stderr
    assert broken.read_text() == content


def test_a_locked_kubeconfig_is_not_changed(session: Shell) -> None:
    session.config.with_name("config.lock").touch()
    assert "locked by another process" in session.expect_failure("kubeconfig", "local", "--merge")


# --- exec plugin ----------------------------------------------------------------------------------------------------


def test_kubectl_gets_the_token_of_the_login_from_the_plugin(session: Shell) -> None:
    session.herder("kubeconfig", "local", "--exec", "--merge")
    kubeconfig = session.config.read_text()
    user = next(each for each in yaml.safe_load(kubeconfig)["users"] if each["name"] == "admin@local")
    assert set(user["user"]) == {"exec"}
    assert "namespace/default" in session.kubectl("--context", "local", "get", "namespaces", "-o", "name").stdout


def test_the_plugin_answers_in_the_requested_version(session: Shell) -> None:
    arguments = ("token", f"--server={session.server.url}", "--user=admin")
    for version in ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"):
        exec_info = json.dumps({"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}})
        credential = json.loads(session.herder(*arguments, KUBERNETES_EXEC_INFO=exec_info))
        assert (credential["apiVersion"], credential["kind"]) == (version, "ExecCredential")
        assert set(credential["status"]) == {"token", "expirationTimestamp"}
    assert "KUBERNETES_EXEC_INFO" in session.expect_failure(*arguments, KUBERNETES_EXEC_INFO='{"apiVersion": "v7"}')


def test_the_server_flag_accepts_a_host_without_scheme(session: Shell) -> None:
    """Kubeconfigs that the manager generates without a token do this."""
    host = session.server.url.removeprefix("https://")
    assert json.loads(session.herder("token", f"--server={host}"))["status"]["token"]


def test_kubeconfigs_use_the_plugin_if_the_manager_generates_no_tokens(session: Shell) -> None:
    setting = ("patch", "settings.management.cattle.io", "kubeconfig-generate-token", "--type=merge", "-p")
    administrator = ("--kubeconfig", session.server.kubeconfig)
    assert session.kubectl(*administrator, *setting, '{"value": "false"}').returncode == 0
    try:
        file = session.home / "asking"
        file.write_text(session.herder("kubeconfig", "local"))
        assert set(yaml.safe_load(file.read_text())["users"][0]["user"]) == {"exec"}
        assert "namespace/default" in session.kubectl("--kubeconfig", file, "get", "namespaces", "-o", "name").stdout
    finally:
        session.kubectl(*administrator, *setting, '{"value": ""}')


def test_without_a_login_kubectl_prints_the_login_command(session: Shell) -> None:
    session.herder("kubeconfig", "local", "--exec", "--merge", "--use")
    for path in (session.home / ".local/state/herder/logins").rglob("*.json"):
        assert mode(path) == 0o600
        assert mode(path.parent) == 0o700
        path.unlink()
    result = session.kubectl("get", "namespaces")
    assert result.returncode != 0
    assert f"run: herder login {session.server.url} -u admin" in result.stderr


def test_an_expired_or_world_readable_login_is_not_used(session: Shell) -> None:
    (saved,) = (session.home / ".local/state/herder/logins").rglob("*.json")
    arguments = ("token", f"--server={session.server.url}")
    login = json.loads(saved.read_text())
    saved.write_text(json.dumps(login | {"expires": "2020-01-01T00:00:00Z"}))
    message = session.expect_failure(*arguments)
    assert f"the login to {session.server.url} has expired; run: herder login {session.server.url} -u admin" in message
    saved.write_text("{}")
    assert "invalid login file; run: herder login" in session.expect_failure(*arguments)
    saved.write_text(json.dumps(login))
    saved.chmod(0o644)
    assert "other users can read this file" in session.expect_failure(*arguments)


def test_several_logins_need_the_user_flag(session: Shell) -> None:
    (saved,) = (session.home / ".local/state/herder/logins").rglob("*.json")
    other = saved.with_name("dolly.json")
    other.touch(mode=0o600)
    other.write_text(saved.read_text().replace('"admin"', '"dolly"'))
    arguments = ("token", f"--server={session.server.url}")
    assert "select one with --user (admin, dolly)" in session.expect_failure(*arguments)
    assert json.loads(session.herder(*arguments, "--user=dolly"))["status"]["token"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("token",), "missing subcommand create, list or revoke"),
        (("token", "--server=x", "list"), "--server and --user cannot be used with list"),
        (("kubeconfig", "local", "--use"), "--use requires --merge"),
        (("kubeconfig", "local", "--user", "x"), "--user requires --exec"),
        (("kubeconfig", "nowhere"), 'cluster "nowhere" not found'),
    ],
)
def test_conflicting_flags_are_reported(session: Shell, arguments: tuple[str, ...], message: str) -> None:
    assert message in session.expect_failure(*arguments)


# --- existing clusters ----------------------------------------------------------------------------------------------


def test_import_does_not_reuse_the_cluster_of_another_user(session: Shell) -> None:
    """The creator of the object owns the cluster that is connected to it."""
    other = {"KUBECONFIG": str(session.server.kubeconfig)}
    first = session.herder("import", "croft")
    assert "kubectl apply -f" in first
    assert "server-url" not in first  # the warning is not part of the command
    assert session.herder("import", "croft") == first, "the creator may repeat the command"
    assert 'cluster croft exists and belongs to user "u-' in session.expect_failure("import", "croft", **other)
    assert session.herder("import", "croft", "--existing", **other) == first


def test_the_printed_import_command_works_with_a_private_ca(session: Shell, tmp_path: Path) -> None:
    """It downloads the manager's CA, checks its digest and passes the manifest to kubectl."""
    result = session.run(HERDER, "import", "barn")
    printed = printed_registration(result.stdout)
    assert "setting server-url: https://127.0.0.1" in result.stderr  # no pod of another host could connect
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f"#!/bin/sh\ncat > {tmp_path}/applied.yaml\n")
    kubectl.chmod(0o755)

    def run(command: str) -> subprocess.CompletedProcess[str]:
        variables = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        return subprocess.run(["bash", "-c", command], env=variables, capture_output=True, text=True, timeout=60)

    assert run(printed.command).returncode == 0
    assert "kind: Deployment" in (tmp_path / "applied.yaml").read_text()
    (tmp_path / "applied.yaml").unlink()
    assert "FAILED" in run(printed.command.replace(printed.checksum, "0" * 64)).stdout
    assert not (tmp_path / "applied.yaml").exists()
