"""Kubelet credential provider plugins: which ones run, what they receive, and that credentials are never logged."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from herder.agent.images import plugins
from herder.agent.images.keychain import Keychain
from herder.agent.images.reference import ImageError
from tests.support.canaries import canary
from tests.support.registry.oci import Registry, image, registry
from tests.unit.agent.nodes import StagingNode

VERSION = "credentialprovider.kubelet.k8s.io/v1"
PASSWORD = canary("plug-in")


class Node(StagingNode):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.programs = directory / "bin"
        self.programs.mkdir()

    def provide(self, name: str, script: str, *patterns: str, **more: Any) -> dict[str, Any]:
        program = self.programs / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return {"name": name, "apiVersion": VERSION, "matchImages": list(patterns), **more}

    def configure(self, *providers: dict[str, Any]) -> None:
        config = {"kind": "CredentialProviderConfig", "apiVersion": "kubelet.config.k8s.io/v1"}
        self.write(yaml.safe_dump({**config, "providers": list(providers)}))

    def write(self, text: str) -> None:
        (self.directory / "config.yaml").write_text(text)

    def keychain(self) -> Keychain:
        return Keychain(str(self.directory / "config.yaml"), str(self.programs), self.log.append)


def provider_script(**auth: str) -> str:
    """Return a script that responds with these users, all with the same password."""
    known = {pattern: {"username": user, "password": PASSWORD} for pattern, user in auth.items()}
    response = {"kind": "CredentialProviderResponse", "apiVersion": VERSION, "cacheKeyType": "Image", "auth": known}
    return f"cat >&2; echo '{json.dumps(response)}'"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.delenv("HOME", raising=False)
    return Node(tmp_path)


@pytest.fixture
def served() -> Iterator[Registry]:
    with registry() as found:
        found.push("team/tool", "v1", image({"a": "one"}))
        found.credentials, found.scheme = ("robot", PASSWORD), "basic"
        yield found


@pytest.mark.parametrize(
    ("pattern", "name", "match"),
    [
        ("h.test", "h.test/a", True),
        ("h.test", "h.test:5000/a", False),
        ("h.test:5000", "h.test:5000/a", True),
        ("*.test", "h.test/a", True),
        ("*.test", "deep.h.test/a", False),
        ("*.*.test", "deep.h.test/a", True),
        ("app*.h.test/team", "app-1.h.test/team/tool", True),
        ("h.test/team", "h.test/other", False),
        ("https://h.test", "h.test/a", True),
        ("127.0.0.1:5000", "127.0.0.1:5000/a", True),
    ],
)
def test_a_plugin_is_used_for_matching_images(pattern: str, name: str, match: bool) -> None:
    assert plugins.matches(pattern, name) is match


def test_a_plugin_receives_the_image_and_its_credentials_reach_the_registry(node: Node, served: Registry) -> None:
    script = f'cat > {node.directory}/request; echo "$WHO $1" > {node.directory}/how; ' + provider_script(
        **{served.host: "robot", "other.test": "nobody"}
    )
    node.configure(node.provide("tool", script, served.host, args=["get"], env=[{"name": "WHO", "value": "me"}]))
    assert node.stage(f"{served.host}/team/tool:v1") == {"a": "one"}
    assert json.loads((node.directory / "request").read_text()) == {
        "kind": "CredentialProviderRequest",
        "apiVersion": VERSION,
        "image": f"{served.host}/team/tool",
    }
    assert (node.directory / "how").read_text() == "me get\n"
    assert PASSWORD not in "".join(node.log)


def test_the_most_specific_credentials_win(node: Node, served: Registry) -> None:
    auth = {served.host: "nobody", f"{served.host}/team": "robot"}
    node.configure(node.provide("tool", provider_script(**auth), served.host))
    assert node.stage(f"{served.host}/team/tool:v1") == {"a": "one"}


def test_registries_yaml_takes_precedence_over_plugins(node: Node, served: Registry) -> None:
    node.configure(node.provide("tool", f"touch {node.directory}/asked", served.host))
    auth = {"username": "robot", "password": PASSWORD}
    node.configure_registries(configs={served.host: {"auth": auth}})
    assert node.stage(f"{served.host}/team/tool:v1") == {"a": "one"}
    assert not (node.directory / "asked").exists()


def test_docker_config_is_used_if_plugins_return_nothing(
    node: Node, served: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.configure(node.provide("tool", provider_script(), served.host))
    monkeypatch.setenv("HOME", str(node.directory))
    (node.directory / ".docker").mkdir()
    auths = {served.host: {"auth": served.basic().split()[1]}}
    (node.directory / ".docker" / "config.json").write_text(json.dumps({"auths": auths}))
    assert node.stage(f"{served.host}/team/tool:v1") == {"a": "one"}


def test_plugins_for_other_images_are_not_started(node: Node, served: Registry) -> None:
    served.credentials = None
    node.configure(node.provide("tool", f"touch {node.directory}/asked", "h.test"))
    assert node.stage(f"{served.host}/team/tool:v1") == {"a": "one"}
    assert not (node.directory / "asked").exists()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (f"echo {PASSWORD}; echo {PASSWORD} >&2; exit 3", "credential provider tool: exit code 3"),
        (f"echo {PASSWORD}", "its answer is not JSON"),
        ("echo '[]'", "its answer is no object"),
        ("echo '{}'", "its answer is no CredentialProviderResponse"),
    ],
)
def test_a_failing_plugin_is_logged_and_the_pull_continues(
    node: Node, served: Registry, script: str, message: str
) -> None:
    served.credentials = None
    node.configure(node.provide("tool", script, served.host))
    assert node.stage(f"{served.host}/team/tool:v1") == {"a": "one"}
    assert any(message in line for line in node.log)
    assert PASSWORD not in "".join(node.log)


def test_a_missing_plugin_is_logged(node: Node, served: Registry) -> None:
    served.credentials = None
    node.configure({"name": "gone", "apiVersion": VERSION, "matchImages": [served.host]})
    assert node.stage(f"{served.host}/team/tool:v1") == {"a": "one"}
    assert any("credential provider gone: cannot be started" in line for line in node.log)


PROVIDER = {"name": "tool", "apiVersion": VERSION, "matchImages": ["h.test"]}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("a: [", "line 1"),
        ("kind: Config", "kind must be CredentialProviderConfig"),
        ("kind: CredentialProviderConfig\napiVersion: v2", "apiVersion must be one of kubelet.config.k8s.io/v1"),
        ({"providers": []}, "providers must be a list"),
        ({"providers": ["tool"]}, r"providers\[0\]: expected keys"),
        ({"providers": [{**PROVIDER, "name": "../sh"}]}, r"providers\[0\].name: '../sh' is no name"),
        ({"providers": [{**PROVIDER, "apiVersion": "v1"}]}, "apiVersion must be one of credentialprovider"),
        ({"providers": [PROVIDER, {**PROVIDER, "matchImages": []}]}, r"providers\[1\].matchImages"),
    ],
)
def test_an_invalid_configuration_names_the_field(
    node: Node, served: Registry, config: str | dict[str, Any], message: str
) -> None:
    kind = {"kind": "CredentialProviderConfig", "apiVersion": "kubelet.config.k8s.io/v1"}
    node.write(config if isinstance(config, str) else yaml.safe_dump({**kind, **config}))
    with pytest.raises(ImageError, match=message):
        node.stage(f"{served.host}/team/tool:v1")
