"""Variables, commands and volumes of a pod, from objects on a real embedded server."""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from herder.engine.meta.kinds import Object
from herder.engine.runner.kinds import CONFIG_MAPS, PODS, SECRETS
from herder.engine.runner.pod import downward
from herder.engine.runner.pod.environment import Program, command_line, expand, program_of, variables_of
from herder.engine.runner.pod.sources import NotReady, Sources
from herder.engine.runner.pod.volumes import Volumes
from tests.unit.engine.runner.inprocess import Served, served

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Served]:
    async with served() as found:
        encoded = {"user": base64.b64encode(b"me").decode(), "odd": base64.b64encode(b"a\0b").decode()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": encoded}
        await found.client.create(SECRETS, secret, namespace="default")
        plain = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"colour": "red"}}
        await found.client.create(CONFIG_MAPS, plain, namespace="default")
        yield found


def new_pod(**spec: Any) -> Object:
    meta = {"name": "p", "namespace": "default", "uid": "u", "labels": {"app": "x"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [], **spec}, "status": {}}


async def variables(server: Served, container: Object, image: dict[str, str] | None = None) -> dict[str, str]:
    sources = Sources(server.client, "default")
    service = {"S": "1"}
    return await variables_of(new_pod(), container, sources, node="n", address="a", service=service, image=image or {})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("$(A)", "1"),
        ("$(B)-$(A)", "$(B)-1"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $", "$A ${A} $"),
        ("$()", "$()"),
    ],
)
def test_variable_references_are_expanded_as_by_the_kubelet(text: str, found: str) -> None:
    assert expand(text, {"A": "1"}) == found


@pytest.mark.parametrize(
    ("container", "command"),
    [
        ({"image": "known"}, ["/bin/tool"]),
        ({"image": "known", "args": ["create", "$(A)"]}, ["/bin/tool", "create", "1"]),
        ({"image": "known", "command": ["other", "$(A)"], "args": ["x"]}, ["other", "1", "x"]),
        ({"image": "unknown", "command": ["other"]}, ["other"]),
    ],
)
def test_command_replaces_the_entrypoint_of_the_image_and_args_are_appended(
    container: Object, command: list[str]
) -> None:
    program = program_of(container, {"known": Program(["/bin/tool"])}.get)
    assert command_line(container, program, {"A": "1"}) == command


def test_an_unknown_image_is_reported_with_the_setting() -> None:
    with pytest.raises(NotReady, match=r'image "unknown".*"runner-commands"') as caught:
        program_of({"image": "unknown", "args": ["x"]}, lambda _image: None)
    assert caught.value.reason == "ErrImagePull"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ({"secretKeyRef": {"name": "none", "key": "k"}}, 'secret "none" not found'),
        ({"secretKeyRef": {"name": "s", "key": "k"}}, "couldn't find key k in secret s"),
        ({"configMapKeyRef": {"name": "c", "key": "k"}}, "couldn't find key k in config map c"),
        ({"secretKeyRef": {"name": "s", "key": "odd"}}, "NUL byte"),
        ({"fieldRef": {"fieldPath": "spec.nothing"}}, 'fieldRef "spec.nothing" is not supported'),
    ],
)
async def test_an_unavailable_variable_is_reported_with_the_reason(
    server: Served, source: Object, problem: str
) -> None:
    container = {"name": "main", "env": [{"name": "X", "valueFrom": source}]}
    with pytest.raises(NotReady, match=problem) as caught:
        await variables(server, container)
    assert caught.value.reason == "CreateContainerConfigError"


async def test_later_variables_override_and_may_reference_earlier_ones(server: Served) -> None:
    container = {
        "name": "main",
        "envFrom": [{"configMapRef": {"name": "c"}}, {"secretRef": {"name": "none", "optional": True}}],
        "env": [{"name": "colour", "value": "dark-$(colour)"}, {"name": "PATH", "value": "/x"}],
    }
    found = await variables(server, container, image={"colour": "blue", "HOME": "/home/image"})
    assert found == {"PATH": "/x", "HOME": "/home/image", "HOSTNAME": "p", "S": "1", "colour": "dark-red"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.uid", "u"),
        ("metadata.labels['app']", "x"),
        ("metadata.labels", 'app="x"'),
        ("metadata.annotations['none']", ""),
        ("spec.nodeName", "node"),
        ("status.podIP", "127.0.0.1"),
    ],
)
def test_pod_fields_are_available_through_the_downward_api(path: str, value: str) -> None:
    assert downward.field(new_pod(), path, node="node", address="127.0.0.1") == value


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [("limits.cpu", "1", "2"), ("limits.cpu", "1m", "1500"), ("limits.memory", "1Mi", "64"), ("requests.cpu", "", "0")],
)
def test_resources_are_rounded_up_to_the_divisor(resource: str, divisor: str, value: str) -> None:
    pod = new_pod(containers=[{"name": "main", "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}}}])
    reference = {"resource": resource, "divisor": divisor}
    assert downward.resource(pod, reference, container="main") == value


def volumes(server: Served, directory: Path, *wanted: Object, host_paths: tuple[Path, ...] = ()) -> Volumes:
    pod = new_pod(volumes=list(wanted))
    return Volumes(server.client, pod, directory, user=None, node="node", address="127.0.0.1", host_paths=host_paths)


async def test_secrets_and_config_maps_are_mounted_as_files_with_their_modes(server: Served, tmp_path: Path) -> None:
    pod_volumes = volumes(
        server,
        tmp_path,
        {"name": "all", "secret": {"secretName": "s", "defaultMode": 0o400}},
        {"name": "some", "configMap": {"name": "c", "items": [{"key": "colour", "path": "a/b", "mode": 0o640}]}},
        {"name": "none", "secret": {"secretName": "nobody", "optional": True}},
        {"name": "empty", "emptyDir": {}},
        {"name": "self", "downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    )
    await pod_volumes.prepare(Sources(server.client, "default"), NOW)
    assert (tmp_path / "all" / "user").read_bytes() == b"me"
    assert stat.S_IMODE((tmp_path / "all" / "user").stat().st_mode) == 0o400
    assert (tmp_path / "some" / "a" / "b").read_bytes() == b"red"
    assert stat.S_IMODE((tmp_path / "some" / "a" / "b").stat().st_mode) == 0o640
    assert os.listdir(tmp_path / "none") == []
    assert stat.S_IMODE((tmp_path / "empty").stat().st_mode) == 0o777
    assert (tmp_path / "self" / "n").read_text() == "p"


@pytest.mark.parametrize(
    ("volume", "problem"),
    [
        ({"secret": {"secretName": "nobody"}}, 'secret "nobody" not found'),
        ({"secret": {"secretName": "s", "items": [{"key": "no", "path": "x"}]}}, "non-existent key: no"),
        ({"hostPath": {"path": "/"}}, r"hostPath / is not allowed by this runner \(allowed: none\)"),
        ({"nfs": {"server": "s", "path": "/"}}, "volume type nfs is not supported"),
    ],
)
async def test_an_unavailable_volume_is_reported_with_the_reason(
    server: Served, tmp_path: Path, volume: Object, problem: str
) -> None:
    pod_volumes = volumes(server, tmp_path, {"name": "v", **volume})
    with pytest.raises(NotReady, match=problem):
        await pod_volumes.prepare(Sources(server.client, "default"), NOW)


async def test_a_token_is_bound_to_its_pod_and_renewed(server: Served, tmp_path: Path) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "holder"},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    }
    pod = await server.client.create(PODS, body, namespace="default")
    pod_volumes = Volumes(server.client, pod, tmp_path, user=None, node="node", address="127.0.0.1")
    await pod_volumes.prepare(Sources(server.client, "default"), datetime.now(UTC))
    (volume,) = pod["spec"]["volumes"]
    token = tmp_path / volume["name"] / "token"
    first = token.read_text()
    assert first.count(".") == 2
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert (tmp_path / volume["name"] / "namespace").read_text() == "default"
    assert pod_volumes.refresh_at is not None
    assert 2000 < (pod_volumes.refresh_at - datetime.now(UTC)).total_seconds() < 3607
    await pod_volumes.prepare(Sources(server.client, "default"), datetime.now(UTC))
    assert token.read_text() != first


async def test_a_sub_path_cannot_leave_its_volume(server: Served, tmp_path: Path) -> None:
    pod_volumes = volumes(server, tmp_path, {"name": "v", "emptyDir": {}})
    await pod_volumes.prepare(Sources(server.client, "default"), NOW)
    (tmp_path / "v" / "link").symlink_to("/etc")
    for path in ("link", "link/ssl"):
        with pytest.raises(NotReady, match="leaves the volume"):
            pod_volumes.mounts({"volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": path}]})
    (mount,) = pod_volumes.mounts({"volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": "deep/er"}]})
    assert (mount["source"], mount["sub_path"]) == (str(tmp_path / "v"), "deep/er")
    assert stat.S_IMODE((tmp_path / "v" / "deep" / "er").stat().st_mode) == 0o777


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ({"path": "lent/inside"}, "is not allowed by this runner"),
        ({"path": "lent/../other"}, "is not allowed by this runner"),
        ({"path": "lent", "type": "DirectoryOrCreate"}, 'type "DirectoryOrCreate" is not supported'),
        ({"path": "absent"}, "is not a directory on this host"),
    ],
)
async def test_only_allowed_host_paths_can_be_mounted(
    server: Served, tmp_path: Path, source: Object, problem: str
) -> None:
    (tmp_path / "lent").mkdir()
    wanted = {"name": "v", "hostPath": {**source, "path": f"{tmp_path}/{source['path']}"}}
    pod_volumes = volumes(server, tmp_path / "volumes", wanted, host_paths=(tmp_path / "lent", tmp_path / "absent"))
    with pytest.raises(NotReady, match=problem):
        await pod_volumes.prepare(Sources(server.client, "default"), NOW)


async def test_a_host_path_is_mounted_writable(server: Served, tmp_path: Path) -> None:
    host_dir = tmp_path / "lent"
    host_dir.mkdir()
    pod_volumes = volumes(
        server,
        tmp_path / "volumes",
        {"name": "v", "hostPath": {"path": f"{host_dir}/", "type": ""}},
        host_paths=(host_dir,),
    )
    await pod_volumes.prepare(Sources(server.client, "default"), NOW)
    (mount,) = pod_volumes.mounts({"volumeMounts": [{"name": "v", "mountPath": "/x"}]})
    assert Path(mount["source"]).resolve() == host_dir
    assert mount["read_only"] is False
    with pytest.raises(NotReady, match="subPath of a hostPath"):
        pod_volumes.mounts({"volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": "inside"}]})
