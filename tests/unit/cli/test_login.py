"""Logins, tokens and kubeconfigs of people, as commands, and kubectl that uses what they wrote."""

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

NOT_FOR_KUBECTL: dict[str, Any] = {
    "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "interactiveMode": "Never"},
    "tokenFile": "/etc/hostname",
    "client-key": "/etc/hostname",
    "proxy-url": "http://proxy.example",
}


@dataclass
class Person:
    """With a home of their own."""

    server: Embedded
    home: Path

    @property
    def config(self) -> Path:
        return self.home / ".kube" / "config"

    def environment(self, **more: str) -> dict[str, str]:
        left_out = ("KUBECONFIG", "HERDER_DATA_DIR", "XDG_STATE_HOME")
        clean = {name: value for name, value in os.environ.items() if name not in left_out}
        return clean | {"HOME": str(self.home), "HERDER_DATA_DIR": str(self.home / "none")} | more

    def run(self, *words: str | Path, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        given = self.environment(**more)
        return subprocess.run(words, input=stdin, env=given, capture_output=True, text=True, timeout=60, check=False)

    def herder(self, *words: str | Path, stdin: str = "", **more: str) -> str:
        done = self.run(HERDER, *words, stdin=stdin, **more)
        assert done.returncode == 0, f"herder {words[0]}: {done.stderr}"
        return done.stdout

    def refused(self, *words: str | Path, **more: str) -> str:
        done = self.run(HERDER, *words, **more)
        assert done.returncode in (1, 2), f"{words}: exit {done.returncode}"
        assert "Traceback" not in done.stderr
        assert not done.stdout
        return done.stderr

    def kubectl(self, *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        return self.run(peer("kubectl"), *words, **more)

    def log_in(self) -> None:
        checksum = ca_checksum(_authority(self.server))
        flags = ("-u", "admin", "--password-stdin", "--ca-checksum", checksum)
        self.herder("login", self.server.url, *flags, stdin=PASSWORD + "\n")

    def written(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(self.config.read_text())
        return found


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
        while True:  # until there is a first user
            done = subprocess.run(
                change, input=PASSWORD + "\n", env=administrator, capture_output=True, text=True, check=False
            )
            if not done.returncode:
                break
            assert time.monotonic() < deadline, done.stderr
            time.sleep(0.2)
        yield server


@pytest.fixture
def person(server: Embedded, tmp_path: Path) -> Person:
    return Person(server, tmp_path)


@pytest.fixture(scope="module")
def logged_in(server: Embedded, tmp_path_factory: pytest.TempPathFactory) -> Person:
    person = Person(server, tmp_path_factory.mktemp("home"))
    person.log_in()
    return person


@pytest.fixture
def guest(logged_in: Person, person: Person) -> Person:
    """Who is logged in."""
    shutil.copytree(logged_in.home, person.home, dirs_exist_ok=True)
    return person


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_a_token_is_printed_once_and_good_until_it_is_revoked(guest: Person) -> None:
    token = guest.herder("token", "create", "--ttl", "2h", "--description", "for the shepherd").strip()
    name = token.removeprefix("ext/").partition(":")[0]
    listed = guest.herder("token", "list")
    assert name in listed
    assert "for the shepherd" in listed
    assert token.partition(":")[2] not in listed
    assert "namespace/default" in as_holder(guest, token).stdout
    assert f"{name} revoked" in guest.herder("token", "revoke", name)
    assert name not in guest.herder("token", "list")
    assert "You must be logged in" in as_holder(guest, token).stderr


def test_a_token_for_one_cluster_is_good_for_nothing_else(guest: Person) -> None:
    token = guest.herder("token", "create", "--cluster", "local").strip()
    assert "namespace/default" in as_holder(guest, token, "/k8s/clusters/local").stdout
    assert "You must be logged in" in as_holder(guest, token).stderr


def as_holder(person: Person, token: str, path: str = "") -> subprocess.CompletedProcess[str]:
    entry = person.written()
    cluster = {**entry["clusters"][0]["cluster"], "server": person.server.url + path}
    config = {**OTHER, "clusters": [{"name": "home", "cluster": cluster}]}
    config["users"] = [{"name": "me", "user": {"token": token}}]
    file = person.home / "holder"
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(config))
    return person.kubectl("--kubeconfig", file, "get", "namespaces", "-o", "name")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("create", "--ttl", "soon"), "'--ttl': must be a duration"),
        (("create", "--cluster", "nowhere"), 'cluster "nowhere" not found'),
        (("revoke",), "Missing argument 'NAME...'"),
        (("revoke", "token-nobodys"), "not found"),
    ],
)
def test_what_is_wrong_with_a_token_is_named(guest: Person, words: tuple[str, ...], told: str) -> None:
    assert told in guest.refused("token", *words)


def test_tokens_are_of_users(person: Person) -> None:
    """The server's own administrator is none."""
    for words in (("list",), ("create",)):
        assert "herder login" in person.refused("token", *words, "--kubeconfig", person.server.kubeconfig)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_an_address_with_a_token_in_it_is_in_no_log_and_no_record(guest: Person, method: str) -> None:
    """Also where it is mistyped. When the server stops, all that it wrote is searched for tokens."""
    token = guest.herder("token", "create", "--ttl", "5m").strip().partition(":")[2]
    places = (f"/v3/import/{token}_c-m-barn.yaml", f"/v3/imports/{token}", f"/{token}", f"/api?token={token}")
    address = guest.server.url.removeprefix("https://")
    authority = ssl.create_default_context(cadata=_authority(guest.server))
    for place in places:
        connection = http.client.HTTPSConnection(address, timeout=30, context=authority)
        connection.request(method, place)
        assert connection.getresponse().status >= 400
        connection.close()


# --- kubeconfigs ------------------------------------------------------------------------------------------------------


def test_a_login_goes_beside_what_is_there_for_its_owner_alone(person: Person) -> None:
    person.config.parent.mkdir()
    person.config.write_text(yaml.safe_dump(OTHER))
    person.log_in()
    written = person.written()
    assert _without(written, "herder-127.0.0.1") == {**OTHER, "current-context": "herder-127.0.0.1"}
    assert mode(person.config) == 0o600
    assert "namespace/default" in person.kubectl("get", "namespaces", "-o", "name").stdout


def _without(config: dict[str, Any], entry: str) -> dict[str, Any]:
    sections = ("clusters", "users", "contexts")
    return config | {name: [each for each in config[name] if each["name"] != entry] for name in sections}


def test_a_kubeconfig_is_merged_and_current_only_where_that_is_wanted(guest: Person) -> None:
    before = guest.written()
    guest.herder("kubeconfig", "local", "--merge")
    written = guest.written()
    assert written["current-context"] == before["current-context"]
    assert [each["name"] for each in written["contexts"]] == ["herder-127.0.0.1", "local"]
    assert "namespace/default" in guest.kubectl("--context", "local", "get", "namespaces", "-o", "name").stdout
    guest.herder("kubeconfig", "local", "--merge", "--use")
    assert guest.written()["current-context"] == "local"
    assert mode(guest.config) == 0o600
    assert not list(guest.config.parent.glob(".*")), "nothing is left beside it"
    assert not list(guest.config.parent.glob("*.lock"))


def test_the_name_of_a_cluster_does_not_take_the_place_of_another_entry(guest: Person) -> None:
    """Owners choose the names of their clusters, such as that of the entry by which people reach the manager."""
    patch = ("patch", "clusters.management.cattle.io", "local", "--type=merge", "-p")
    change = '{"spec":{"displayName":"%s"}}'
    assert guest.kubectl(*patch, change % "herder-127.0.0.1").returncode == 0
    before = guest.config.read_text()
    try:
        assert "points to" in guest.refused("kubeconfig", "local", "--merge")
        assert guest.config.read_text() == before
    finally:
        guest.config.write_text(before)
        guest.kubectl(*patch, change % "local")


def test_a_merged_user_does_not_take_the_place_of_another(guest: Person) -> None:
    me = {"name": "admin", "user": {"token": canary("token of an admin elsewhere")}}
    guest.config.write_text(yaml.safe_dump(guest.written() | {"users": [*guest.written()["users"], me]}))
    guest.herder("kubeconfig", "local", "--merge")
    assert me in guest.written()["users"]
    assert "namespace/default" in guest.kubectl("--context", "local", "get", "namespaces", "-o", "name").stdout


@pytest.mark.parametrize("entry", [*NOT_FOR_KUBECTL])
def test_a_kubeconfig_secret_makes_kubectl_run_and_read_nothing(person: Person, entry: str) -> None:
    """Whoever may edit Secrets of the cluster's namespace writes it; administrators by certificate are handed it."""
    administrator = ("--kubeconfig", person.server.kubeconfig)
    name = f"croft-{entry.lower()}"
    user = {"token": "mine"} | ({entry: NOT_FOR_KUBECTL[entry]} if entry != "proxy-url" else {})
    cluster = {"server": "https://croft.example"} | ({entry: NOT_FOR_KUBECTL[entry]} if entry == "proxy-url" else {})
    config = {
        "clusters": [{"name": "croft", "cluster": cluster}],
        "users": [{"name": "croft", "user": user}],
        "contexts": [{"name": "croft", "context": {"cluster": "croft", "user": "croft"}}],
        "current-context": "croft",
    }
    _offer(person, name, config)
    assert entry in person.refused("kubeconfig", name, *administrator)


def test_a_kubeconfig_secret_replaces_no_other_entry(person: Person) -> None:
    administrator = ("--kubeconfig", person.server.kubeconfig)
    config = {
        "clusters": [{"name": "croft", "cluster": {"server": "https://croft.example"}}],
        "users": [{"name": name, "user": {"token": name}} for name in ("croft", "kubernetes-admin")],
        "contexts": [{"name": "croft", "context": {"cluster": "croft", "user": "croft"}}],
        "current-context": "croft",
    }
    _offer(person, "croft-more", config)
    printed = yaml.safe_load(person.herder("kubeconfig", "croft-more", *administrator))
    assert printed["users"] == [{"name": "croft-more", "user": {"token": "croft"}}]


def _offer(person: Person, name: str, config: dict[str, Any]) -> None:
    """A Cluster, and the Secret that other programs reach it with."""
    kubectl = ("--kubeconfig", person.server.kubeconfig, "-n", "fleet-default")
    meta = {"name": f"{name}-kubeconfig", "namespace": "fleet-default"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "cluster.x-k8s.io/secret"}
    cluster = {"apiVersion": "provisioning.cattle.io/v1", "kind": "Cluster", "metadata": {"name": name}, "spec": {}}
    objects = [{**secret, "stringData": {"value": yaml.safe_dump(config)}}, cluster]
    done = person.run(peer("kubectl"), *kubectl, "apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
    assert done.returncode == 0, done.stderr
    named = ("wait", f"clusters.provisioning.cattle.io/{name}", "--for=jsonpath={.status.clusterName}")
    assert person.kubectl(*kubectl, *named).returncode == 0


def test_where_none_is_current_the_merged_one_becomes_it(guest: Person) -> None:
    config = guest.written() | {"current-context": ""}
    (guest.home / "manager").write_text(guest.config.read_text())
    guest.config.write_text(yaml.safe_dump(config))
    printed = guest.herder("kubeconfig", "local", "--kubeconfig", guest.home / "manager", "--merge")
    assert "current context" not in printed
    assert merge_into(guest.config, yaml.safe_load((guest.home / "manager").read_text()), use=False)
    assert guest.written()["current-context"] == "herder-127.0.0.1"


def test_what_a_link_leads_to_is_changed_and_the_link_stays(guest: Person) -> None:
    elsewhere = guest.home / "dotfiles"
    guest.config.rename(elsewhere)
    guest.config.symlink_to(elsewhere)
    guest.herder("kubeconfig", "local", "--merge")
    assert guest.config.is_symlink()
    assert "local" in elsewhere.read_text()
    assert mode(elsewhere) == 0o600


@pytest.mark.parametrize("content", ["[1, 2]", "clusters: {}", "a: [", "contexts: [word]"])
def test_what_is_no_kubeconfig_is_left_as_it_is(guest: Person, content: str) -> None:
    broken = guest.home / "broken"
    broken.write_text(content)
    login = ("login", guest.server.url, "-u", "admin", "--password-stdin", "--ca-checksum")
    done = guest.run(
        HERDER, *login, ca_checksum(_authority(guest.server)), "--kubeconfig", broken, stdin=PASSWORD + "\n"
    )
    assert done.returncode == 1
    assert "not a valid kubeconfig; it was not changed" in done.stderr
    assert broken.read_text() == content


def test_one_that_kubectl_changes_at_the_moment_is_not_changed(guest: Person) -> None:
    guest.config.with_name("config.lock").touch()
    assert "locked by another process" in guest.refused("kubeconfig", "local", "--merge")


# --- the plug-in ------------------------------------------------------------------------------------------------------


def test_kubectl_asks_for_the_token_of_the_login(guest: Person) -> None:
    guest.herder("kubeconfig", "local", "--exec", "--merge")
    written = guest.config.read_text()
    user = next(each for each in yaml.safe_load(written)["users"] if each["name"] == "admin@local")
    assert set(user["user"]) == {"exec"}
    assert "namespace/default" in guest.kubectl("--context", "local", "get", "namespaces", "-o", "name").stdout


def test_the_plugin_speaks_as_it_is_spoken_to(guest: Person) -> None:
    words = ("token", f"--server={guest.server.url}", "--user=admin")
    for version in ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"):
        asked = json.dumps({"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}})
        told = json.loads(guest.herder(*words, KUBERNETES_EXEC_INFO=asked))
        assert (told["apiVersion"], told["kind"]) == (version, "ExecCredential")
        assert set(told["status"]) == {"token", "expirationTimestamp"}
    assert "KUBERNETES_EXEC_INFO" in guest.refused(*words, KUBERNETES_EXEC_INFO='{"apiVersion": "v7"}')


def test_the_manager_may_be_named_by_its_host_alone(guest: Person) -> None:
    """As kubeconfigs do that the manager makes without a token."""
    host = guest.server.url.removeprefix("https://")
    assert json.loads(guest.herder("token", f"--server={host}"))["status"]["token"]


def test_a_manager_that_gives_no_tokens_lets_kubectl_ask_for_one_too(guest: Person) -> None:
    setting = ("patch", "settings.management.cattle.io", "kubeconfig-generate-token", "--type=merge", "-p")
    administrator = ("--kubeconfig", guest.server.kubeconfig)
    assert guest.kubectl(*administrator, *setting, '{"value": "false"}').returncode == 0
    try:
        file = guest.home / "asking"
        file.write_text(guest.herder("kubeconfig", "local"))
        assert set(yaml.safe_load(file.read_text())["users"][0]["user"]) == {"exec"}
        assert "namespace/default" in guest.kubectl("--kubeconfig", file, "get", "namespaces", "-o", "name").stdout
    finally:
        guest.kubectl(*administrator, *setting, '{"value": ""}')


def test_without_a_login_kubectl_says_how_to_get_one(guest: Person) -> None:
    guest.herder("kubeconfig", "local", "--exec", "--merge", "--use")
    for path in (guest.home / ".local/state/herder/logins").rglob("*.json"):
        assert mode(path) == 0o600
        assert mode(path.parent) == 0o700
        path.unlink()
    done = guest.kubectl("get", "namespaces")
    assert done.returncode != 0
    assert f"run: herder login {guest.server.url} -u admin" in done.stderr


def test_a_login_that_is_over_or_open_to_others_is_not_used(guest: Person) -> None:
    (kept,) = (guest.home / ".local/state/herder/logins").rglob("*.json")
    words = ("token", f"--server={guest.server.url}")
    login = json.loads(kept.read_text())
    kept.write_text(json.dumps(login | {"expires": "2020-01-01T00:00:00Z"}))
    told = guest.refused(*words)
    assert f"the login to {guest.server.url} has expired; run: herder login {guest.server.url} -u admin" in told
    kept.write_text("{}")
    assert "invalid login file; run: herder login" in guest.refused(*words)
    kept.write_text(json.dumps(login))
    kept.chmod(0o644)
    assert "other users can read this file" in guest.refused(*words)


def test_who_is_meant_must_be_said_where_several_are_logged_in(guest: Person) -> None:
    (kept,) = (guest.home / ".local/state/herder/logins").rglob("*.json")
    other = kept.with_name("dolly.json")
    other.touch(mode=0o600)
    other.write_text(kept.read_text().replace('"admin"', '"dolly"'))
    words = ("token", f"--server={guest.server.url}")
    assert "select one with --user (admin, dolly)" in guest.refused(*words)
    assert json.loads(guest.herder(*words, "--user=dolly"))["status"]["token"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("token",), "missing subcommand create, list or revoke"),
        (("token", "--server=x", "list"), "--server and --user cannot be used with list"),
        (("kubeconfig", "local", "--use"), "--use requires --merge"),
        (("kubeconfig", "local", "--user", "x"), "--user requires --exec"),
        (("kubeconfig", "nowhere"), 'cluster "nowhere" not found'),
    ],
)
def test_words_that_do_not_go_together_are_named(guest: Person, words: tuple[str, ...], told: str) -> None:
    assert told in guest.refused(*words)


# --- clusters that exist under the name -----------------------------------------------------------------------------


def test_a_cluster_is_not_connected_to_the_object_of_another_user(guest: Person) -> None:
    """Whoever created the object owns the cluster that is connected to it."""
    other = {"KUBECONFIG": str(guest.server.kubeconfig)}
    first = guest.herder("import", "croft")
    assert "kubectl apply -f" in first
    assert guest.herder("import", "croft") == first, "the user who created it may ask again"
    assert 'cluster croft exists and belongs to user "u-' in guest.refused("import", "croft", **other)
    assert guest.herder("import", "croft", "--existing", **other) == first
