"""`herder support-bundle`, on the embedded server and on a real kube-apiserver. No secret gets into a bundle."""

from __future__ import annotations

import base64
import gzip
import json
import stat
import tarfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from herder.api.capi.kinds import NAMESPACE, SECRET
from herder.api.management.kinds import PROVISIONING_CLUSTER, TOKEN
from herder.api.rke.kinds import CONTROL_PLANE
from herder.app.install import install_kinds
from herder.app.support import archive, bundle
from herder.app.support.archive import Archive
from herder.app.support.bundle import Bundle, Sources, known_metrics
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.client.kubeconfig import RestConfig
from herder.engine.meta.errors import AlreadyExists, StatusError
from herder.engine.meta.kinds import GroupVersionResource, Kind, Object
from tests.support.canaries import canary, secrets_in
from tests.support.embedded import Embedded
from tests.support.engines import Engine, remove_kinds, unique
from tests.unit.cli.commands import expect_failure, herder

EVENT = Kind("", "v1", "Event", "events")
ACCOUNTS = GroupVersionResource("", "v1", "serviceaccounts")
CONFIG = Kind("rke-machine-config.cattle.io", "v1", "ExampleConfig", "exampleconfigs")
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
PLANTED = "planted-where-it-does-not-belong"
"""Outside Secrets, canaries would fail the scan of the server: users, not Herder, put secrets there."""
ENCODED = base64.b64encode(canary("in a secret").encode()).decode()
KUBECONFIG = (
    f"apiVersion: v1\nkind: Config\nusers:\n- name: a\n  user:\n    token: {PLANTED}\n    password: {PLANTED}\n"
)


def contents(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar.getmembers()}  # type: ignore[union-attr]


def document(files: dict[str, bytes], name: str) -> Any:
    return json.loads(files[f"herder-support/{name}"])


def definition(kind: Kind) -> Object:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": {"plural": kind.plural, "kind": kind.kind, "singular": kind.kind.lower()},
            "versions": [{"name": kind.version, "served": True, "storage": True, "schema": schema}],
        },
    }


def planted() -> list[tuple[Kind, Object]]:
    """Objects with secrets where users put them."""
    applied = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps({"token": PLANTED, "x": PLANTED})}
    config = {
        "machineGlobalConfig": {"cni": "calico", "token": PLANTED, "datastore-endpoint": f"mysql://u:{PLANTED}@db"},
        "machineSelectorConfig": [{"config": {"anything": PLANTED}}],
        "chartValues": {"chart": {"value": PLANTED}},
        "additionalManifest": KUBECONFIG,
        "registries": {"mirrors": {"docker.io": {"endpoint": [f"https://u:{PLANTED}@mirror.example.com"]}}},
    }
    environment = [{"name": "HTTPS_PROXY", "value": PLANTED}]
    spec = {"kubernetesVersion": "v1.33.4+k3s1", "agentEnvVars": environment, "rkeConfig": config}
    run = {"id": "1", "kind": "etcdSnapshotCreate", "phase": "Failed", "message": f"flag --token {PLANTED}"}
    history = {"operation": run, "operationHistory": [run]}
    annotations = applied | {"example.com/kubeconfig": KUBECONFIG}
    return [
        (SECRET, {"metadata": {"name": "a"}, "type": "Opaque", "data": {"password": ENCODED}}),
        (CONFIG_MAP, {"metadata": {"name": "a"}, "data": {"config": KUBECONFIG}}),
        (PROVISIONING_CLUSTER, {"metadata": {"name": "meadow", "annotations": annotations}, "spec": spec}),
        (CONTROL_PLANE, {"metadata": {"name": "meadow"}, "spec": spec, "status": history}),
        (CONFIG, {"metadata": {"name": "a"}, "region": "eu-west-1", "accessKey": PLANTED, "userdata": PLANTED}),
        (TOKEN._replace(namespaced=False), {"metadata": {"name": unique("token")}, "token": PLANTED}),
        (EVENT, _event("meadow", "Cluster", PROVISIONING_CLUSTER.api_version)),
        (EVENT, _event("of-a-pod", "Pod", "v1")),
        (EVENT, _event("of-another-group", "Cluster", "example.com/v1")),
    ]


def _event(name: str, kind: str, api_version: str) -> Object:
    about = {"apiVersion": api_version, "kind": kind, "namespace": "default", "name": name}
    return {
        "metadata": {"name": f"{name}.1"},
        "involvedObject": about,
        "reason": "Tested",
        "type": "Normal",
        "message": f"started with password={PLANTED}",
    }


@pytest.fixture(scope="module")
async def namespace(engine: Engine) -> AsyncIterator[str]:
    """A namespace with planted secrets."""
    client = engine.client()
    kinds = (PROVISIONING_CLUSTER, CONTROL_PLANE, CONFIG, TOKEN)
    place = unique("bundle")
    existing = {each["metadata"]["name"] for each in (await client.list_all(_DEFINITIONS)).items}
    wanted = [each for each in map(definition, kinds) if each["metadata"]["name"] not in existing]
    await install_kinds(client, wanted)
    await client.create(NAMESPACE.resource, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place}})
    objects = planted()
    for kind, obj in objects:
        typed = {"apiVersion": kind.api_version, "kind": kind.kind, **obj}
        if kind is EVENT:
            typed["involvedObject"] = obj["involvedObject"] | {"namespace": place}
        with suppress(AlreadyExists):
            await client.create(kind.resource, typed, namespace=place if kind.namespaced else "")
    yield place
    for kind, obj in objects:
        with suppress(StatusError):
            name = obj["metadata"]["name"]
            await client.delete(kind.resource, name, namespace=place if kind.namespaced else "")
    await client.delete(NAMESPACE.resource, place)
    await remove_kinds(client, [each["metadata"]["name"] for each in wanted])
    await client.close()


_DEFINITIONS = GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions")


def test_a_bundle_has_what_helps_and_no_secret(engine: Engine, namespace: str, tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    path.write_text("an older one, which others can read")
    path.chmod(0o644)
    done = herder("support-bundle", "--kubeconfig", engine.kubeconfig, "-o", path, "-n", namespace)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    everything = gzip.decompress(path.read_bytes()) + done.stdout.encode() + done.stderr.encode()
    assert PLANTED.encode() not in everything
    assert base64.b64encode(PLANTED.encode())[:-4] not in everything
    assert secrets_in(everything) == []
    files = contents(path)
    assert not [name for name in files if "secrets" in name or "configmaps" in name]
    (cluster,) = document(files, "objects/provisioning.cattle.io/clusters.json")
    assert cluster["spec"]["rkeConfig"]["machineGlobalConfig"]["cni"] == "calico"
    assert "managedFields" not in cluster["metadata"]
    (config,) = document(files, "objects/rke-machine-config.cattle.io/exampleconfigs.json")
    assert (config["region"], config["accessKey"]) == ("eu-west-1", "REDACTED")
    (operation,) = document(files, "operations.json")
    assert operation["history"][0]["phase"] == "Failed"
    (event,) = document(files, "events.json")
    assert event["about"] == {"kind": "Cluster", "namespace": namespace, "name": "meadow"}
    assert event["message"] == "started with password=REDACTED"
    assert document(files, "versions.json")["kubernetes"]["gitVersion"].startswith("v1.")
    unread = {each["what"] for each in document(files, "unread.json")}
    if engine.is_real:
        assert unread == {"metrics"}
        checks = {each["check"] for each in document(files, "doctor.json")}
        assert {"API server", "APIs"} <= checks
        assert not {"rights", "CRDs"} & checks, "these are of interest before an install"
    else:
        assert "doctor" in unread, "the data directory of the server is not that of this command"
        assert b"herder_store_revision" in files["herder-support/metrics.txt"]
    check_manifest(path)


def check_manifest(path: Path) -> None:
    """It comes first, lists all contents, and the layout says nothing about this host."""
    with tarfile.open(path) as tar:
        entries = tar.getmembers()
    assert entries[0].name == "herder-support/manifest.json"
    assert {(each.mode, each.uid, each.mtime, each.isreg()) for each in entries} == {(0o600, 0, 0, True)}
    listed = document(contents(path), "manifest.json")["files"]
    assert [f"herder-support/{each['name']}" for each in listed] == [each.name for each in entries[1:]]
    assert [each["bytes"] for each in listed] == [each.size for each in entries[1:]]


async def test_a_user_without_rights_learns_what_was_not_read(engine: Engine, namespace: str) -> None:
    client = engine.client()
    name = unique("account")
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    await client.create(ACCOUNTS, account, namespace=namespace)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    answer = await client.create(ACCOUNTS, request, namespace=namespace, name=name, subresource="token")
    await client.close()
    here = engine.connection
    limited = Client(HttpTransport(RestConfig(here.server, ca=here.ca, token=answer["status"]["token"])))
    found = Bundle(Sources(limited, here.server))
    await found.collect()
    await limited.close()
    unread = {each["what"]: each["reason"] for each in found.unread}
    assert "cannot list resource" in unread["clusters.provisioning.cattle.io"]
    assert "cannot list resource" in unread["events"]
    assert "secrets" not in unread
    assert answer["status"]["token"] not in json.dumps(found.unread)


# --- without a cluster ------------------------------------------------------------------------------------------------


def test_the_log_and_the_checks_of_an_embedded_server_are_included(tmp_path: Path) -> None:
    with Embedded(tmp_path / "data", flags=("--capi-core=external", "--no-machines", "--no-runner")) as server:
        with (server.directory / "up.log").open("a") as log:
            log.write(f'{{"message":"failed","token":"{PLANTED}"}}\n')
        path = tmp_path / "b.tar.gz"
        herder("support-bundle", "--data-dir", server.directory, "--kubeconfig", server.kubeconfig, "-o", path)
    files = contents(path)
    assert b'"token":"REDACTED"}' in files["herder-support/logs/up.log"]
    assert {each["check"] for each in document(files, "doctor.json")} >= {"disk", "python"}
    assert PLANTED.encode() not in gzip.decompress(path.read_bytes())
    assert secrets_in(gzip.decompress(path.read_bytes())) == []


def test_the_end_of_a_long_log_begins_with_a_whole_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_LOG", 20)
    log = tmp_path / "up.log"
    log.write_text("password=0123456789\nsecond line\n")
    assert bundle._tail(log) == ("second line\n", False)
    link = tmp_path / "link"
    link.symlink_to(log)
    with pytest.raises(OSError, match="symbolic links"):
        bundle._tail(link)


def test_a_bundle_is_bounded_and_deterministic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_FILE", 100)
    monkeypatch.setattr(archive, "MAX_TOTAL", 150)
    written = []
    for number, order in enumerate(("abc", "acb")):
        found = Archive()
        for name in order:
            found.add(name, name.encode() * (101 if name == "b" else 70))
        found.write(tmp_path / str(number), {})
        written.append((tmp_path / str(number)).read_bytes())
    assert written[0] == written[1]
    listed = document(contents(tmp_path / "0"), "manifest.json")["files"]
    assert [each["bytes"] for each in listed] == [70, 0, 70]
    assert listed[1]["note"] == "left out: 101 bytes are too much"


def test_only_metrics_of_herder_are_kept() -> None:
    text = (
        '# HELP herder_clusters x\n# TYPE herder_clusters gauge\nherder_clusters{state="ready"} 1.0\n'
        'herder_store_commit_duration_seconds_bucket{le="0.1"} 1\nother{token="x"} 1\nworkqueue_adds_created 1\n'
    )
    assert [line.split("{")[0] for line in known_metrics(text).splitlines()] == [
        "# HELP herder_clusters x",
        "# TYPE herder_clusters gauge",
        "herder_clusters",
        "herder_store_commit_duration_seconds_bucket",
        "workqueue_adds_created 1",
    ]


def test_a_wrong_directory_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    message = expect_failure("support-bundle", "--kubeconfig", "none", "-o", tmp_path / "none" / "b.tar.gz")
    assert "no such directory" in message
