"""What users with the default role see when they work with their own clusters, on both engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from herder.api.identity.names import LOCAL_PRINCIPAL
from herder.api.management.kinds import CLUSTER_BINDING
from herder.api.rke.names import CLUSTER_SPEC, PREVIOUS_SPEC
from tests.support.manager.users import MANAGERS, Manager, Person

NAME, NAMESPACE = "meadow", "fleet-default"


@pytest.fixture(scope="module", params=MANAGERS)
def manager(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    with MANAGERS[request.param](tmp_path_factory.mktemp(request.param)) as manager:
        yield manager


@pytest.fixture(scope="module")
def dolly(manager: Manager) -> Person:
    return manager.user("dolly")


@pytest.fixture(scope="module")
def molly(manager: Manager) -> Person:
    return manager.user("molly")


def test_a_default_user_may_not_use_the_host_of_the_manager(dolly: Person) -> None:
    output = dolly.expect_failure("create", "cluster", NAME)
    assert 'cannot use NodeDriver "process"' in output
    assert "the GlobalRole host-machines grants" in output


def test_a_granted_user_creates_a_cluster_and_sees_its_progress(manager: Manager, dolly: Person) -> None:
    assert "dolly has global role host-machines" in manager.administrator.herder(
        "grant", "dolly", "--global-role", "host-machines"
    )
    output = dolly.herder("create", "cluster", NAME, "--servers", "1", "--workers", "1")
    assert output.count(": Running") == 2
    assert f"cluster {NAME} is ready" in output


def test_an_owner_describes_the_cluster_and_reads_its_logs(dolly: Person) -> None:
    tree = dolly.herder("describe", "cluster", NAME, "--expand")
    assert f"ControlPlane - RKEControlPlane/{NAME}" in tree
    assert tree.count("─Machine/") == 2
    assert "provisioning done" in dolly.herder("logs", "cluster", NAME)
    machine = tree.partition("─Machine/")[2].split()[0]
    assert "Creating machine" in dolly.herder("logs", "machine", machine)


def test_an_owner_lists_clusters_and_machines(dolly: Person) -> None:
    clusters = dolly.herder("get", "clusters").splitlines()
    assert [line.split()[0] for line in clusters] == ["NAME", NAME]
    machines = dolly.herder("get", "machines").splitlines()
    assert machines[0].split()[:5] == ["NAME", "CLUSTER", "ROLES", "ADDRESS", "VERSION"]
    assert sorted(line.split()[1:3] for line in machines[1:]) == [
        [NAME, "etcd,controlplane"],
        [NAME, "worker"],
    ]


def test_an_owner_scales_and_upgrades(dolly: Person) -> None:
    assert f"cluster {NAME} is ready" in dolly.herder("scale", "cluster", NAME, "workers=2")
    assert len(json.loads(dolly.herder("get", "machines", "-o", "json"))["items"]) == 3
    assert f"cluster {NAME} is ready" in dolly.herder("upgrade", "cluster", NAME, "v1.36.4+herder1")


def test_members_do_not_see_the_spec_before_the_upgrade(manager: Manager, dolly: Person) -> None:
    """The control plane keeps it for the next snapshot. It has values that owners may have removed since."""
    admin = manager.administrator
    kept = json.loads(admin.kubectl("-n", NAMESPACE, "get", "rkecontrolplanes.rke.cattle.io", NAME, "-o=json"))
    assert PREVIOUS_SPEC in kept["metadata"]["annotations"]
    path = f"/v3/clusters/{kept['spec']['managementClusterName']}/objects"
    seen = json.loads(dolly.kubectl("get", "--raw", path))["items"]
    (plane,) = [each for each in seen if each["kind"] == "RKEControlPlane"]
    assert PREVIOUS_SPEC not in plane["metadata"]["annotations"]
    assert plane["metadata"]["annotations"][CLUSTER_SPEC]


def test_an_owner_lists_the_snapshots_of_the_cluster(manager: Manager, dolly: Person) -> None:
    """Only those that its Cluster or Machines own; others with its label may be of a former cluster of its name."""
    admin = manager.administrator
    admin.kubectl("-n", NAMESPACE, "create", "configmap", "former")
    for owner, name in (("configmaps", "former"), ("clusters.cluster.x-k8s.io", NAME)):
        add_snapshot(
            admin, f"{name}-snapshot", json.loads(admin.kubectl("-n", NAMESPACE, "get", owner, name, "-o=json"))
        )
    listed = json.loads(dolly.herder("snapshot", "list", NAME, "-o", "json"))["items"]
    (found,) = [each for each in listed if each["metadata"]["name"] == f"{NAME}-snapshot"]
    assert found["snapshotFile"] == {"name": "file", "nodeName": "s3", "status": "successful"}
    assert len(listed) == 2, "one was saved before the upgrade"
    assert "former-snapshot" not in dolly.herder("snapshot", "list", NAME)
    assert "former-snapshot" in admin.herder("snapshot", "list", NAME)
    assert "snapshot before the upgrade" in dolly.herder("operations", NAME)
    admin.kubectl("-n", NAMESPACE, "delete", "etcdsnapshots.rke.cattle.io", "--all")
    admin.kubectl("-n", NAMESPACE, "delete", "configmap", "former")


def add_snapshot(admin: Person, name: str, owner: Any) -> None:
    reference = {key: owner[key] for key in ("apiVersion", "kind")}
    reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
    labels = {"rke.cattle.io/cluster-name": NAME}
    file = {"name": "file", "nodeName": "s3", "status": "successful", "metadata": "e30="}
    obj = {
        "apiVersion": "rke.cattle.io/v1",
        "kind": "ETCDSnapshot",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels, "ownerReferences": [reference]},
        "spec": {"clusterName": NAME},
        "snapshotFile": file,
    }
    admin.kubectl("create", "-f", "-", stdin=json.dumps(obj))


def test_other_users_see_nothing_of_the_cluster(molly: Person) -> None:
    for command in (
        ("describe", "cluster", NAME),
        ("logs", "cluster", NAME),
        ("scale", "cluster", NAME, "workers=1"),
        ("delete", "cluster", NAME, "--yes"),
        ("wait", "cluster", NAME),
        ("register", NAME, "--roles", "all"),
        ("snapshot", "list", NAME),
        ("snapshot", "create", NAME),
        ("snapshot", "restore", NAME, f"{NAME}-own", "--yes"),
        ("rotate", "certificates", NAME),
        ("operations", NAME),
    ):
        assert "is forbidden" in molly.expect_failure(*command), command
    assert NAME not in molly.herder("get", "clusters")


def test_a_member_describes_the_cluster_but_reads_no_logs(manager: Manager, dolly: Person, molly: Person) -> None:
    assert f"molly has role cluster-member in cluster {NAME}" in manager.administrator.herder(
        "grant", "molly", "--cluster", NAME, "--role", "member"
    )
    tree = molly.herder("describe", "cluster", NAME)
    assert f"RKEControlPlane/{NAME}" in tree
    assert "only its owners" in molly.expect_failure("logs", "cluster", NAME)
    assert "cannot update" in molly.expect_failure("scale", "cluster", NAME, "workers=1")
    assert "cannot update" in molly.expect_failure("snapshot", "create", NAME)
    assert "revoked" in manager.administrator.herder("revoke", "molly", "--cluster", NAME, "--role", "member")


def test_a_user_imports_a_cluster(manager: Manager, dolly: Person) -> None:
    output = dolly.herder("import", "barn")
    assert f"{manager.url}/v3/import/" in output
    assert "cluster barn is deleted" in dolly.herder("delete", "cluster", "barn", "--yes")


def test_an_imported_cluster_shows_no_machines_of_another_cluster_of_its_name(manager: Manager, dolly: Person) -> None:
    """The gateway reads objects with the manager's rights: only of the Cluster that it created for this one."""
    admin = manager.administrator
    reference = {"apiGroup": "infrastructure.example.com", "kind": "Host", "name": "croft"}
    meta = {"name": "croft", "namespace": NAMESPACE, "labels": {"cluster.x-k8s.io/cluster-name": "croft"}}
    spec = {"clusterName": "croft", "bootstrap": {"dataSecretName": "croft"}, "infrastructureRef": reference}
    kinds = {"Cluster": {"infrastructureRef": reference}, "Machine": spec}
    for kind, fields in kinds.items():
        obj = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind, "metadata": meta, "spec": fields}
        admin.kubectl("apply", "-f", "-", stdin=json.dumps(obj))
    id_ = dolly.herder("import", "croft").partition("has the ID ")[2].split(".")[0]
    assert "croft" not in dolly.herder("get", "machines")
    assert "Machine/" not in dolly.herder("describe", "cluster", "croft")
    assert "is forbidden" in dolly.expect_failure("logs", "machine", "croft")
    assert manager.status(dolly, f"/v3/clusters/{id_}/logs?machine=croft") == 404
    for path in ("logs?machine=..%2F..%2Fclusters%2Fcroft", "logs?machine=croft%3Fx"):
        assert manager.status(dolly, f"/v3/clusters/{id_}/{path}") == 400
    for path in (f"{NAMESPACE}/..%2Fx/1", "../croft/1", f"{NAMESPACE}/croft/1"):
        assert manager.status(dolly, f"/v3/deletions/{path}") in (400, 403, 404)
    dolly.herder("delete", "cluster", "croft", "--yes")
    for kind in ("machines", "clusters"):
        admin.kubectl("-n", NAMESPACE, "delete", f"{kind}.cluster.x-k8s.io", "croft", "--wait=false")


def test_a_typo_creates_no_namespace(manager: Manager, dolly: Person) -> None:
    assert "is forbidden" in dolly.expect_failure("create", "cluster", "fen", "-n", "flet-default")
    admin = manager.administrator
    hint = 'namespace "flet-default" not found; check -n, or create it with: kubectl create namespace flet-default'
    assert hint in admin.expect_failure("create", "cluster", "fen", "-n", "flet-default")
    assert hint in admin.expect_failure("import", "fen", "-n", "flet-default")
    assert "flet-default" not in admin.kubectl("get", "namespaces", "-o", "name")


def test_revoked_rights_end_a_wait_with_the_missing_right(manager: Manager, dolly: Person, molly: Person) -> None:
    output = molly.expect_failure("wait", "cluster", NAME)
    assert f"cluster {NAME}: cannot watch it" in output
    assert 'cannot watch resource "clusters" in API group "provisioning.cattle.io"' in output


def test_an_owner_deletes_the_cluster_and_waits_until_it_is_gone(manager: Manager, dolly: Person) -> None:
    output = dolly.herder("delete", "cluster", NAME, "--yes")
    assert f"cluster {NAME} is deleted" in output
    listed = manager.administrator.kubectl("get", "clusters.provisioning.cattle.io", "-A", "-o", "name")
    assert f"/{NAME}" not in listed
    assert "No machines" in manager.administrator.run("get", "machines").stderr


def test_a_foreign_finalizer_is_named_with_its_author_while_it_blocks_a_deletion(
    manager: Manager, dolly: Person, molly: Person
) -> None:
    dolly.herder("import", "shed")
    kind, admin = "clusters.provisioning.cattle.io", manager.administrator
    add = '[{"op": "add", "path": "/metadata/finalizers/-", "value": "example.com/hold"}]'
    admin.kubectl("-n", NAMESPACE, "patch", kind, "shed", "--type=json", "-p", add, "--field-manager=keeper")
    result = dolly.run("delete", "cluster", "shed", "--yes", "--timeout", "5")
    assert result.returncode == 1
    assert "block the deletion: example.com/hold (set by keeper)" in result.stdout
    conditions = json.loads(admin.kubectl("-n", NAMESPACE, "get", kind, "shed", "-o", "json"))["status"]["conditions"]
    removed = next(each for each in conditions if each["type"] == "Removed")
    assert removed["reason"] == "BlockedByFinalizer"
    uid = admin.kubectl("-n", NAMESPACE, "get", kind, "shed", "-o", "jsonpath={.metadata.uid}")
    followed = [manager.status(user, f"/v3/deletions/{NAMESPACE}/shed/{uid}") for user in (dolly, molly)]
    assert followed == [200, 404], "only the creator follows the deletion"
    assert '"example.com/hold" of another controller blocks the deletion' in removed["message"]
    drop = '[{"op": "remove", "path": "/metadata/finalizers"}]'
    admin.kubectl("-n", NAMESPACE, "patch", kind, "shed", "--type=json", "-p", drop)
    assert "cluster shed is deleted" in admin.herder("wait", "cluster", "shed", "--for", "deleted")


def test_users_are_listed_with_a_header_and_deleted_with_their_tokens(manager: Manager) -> None:
    polly, admin = manager.user("polly"), manager.administrator
    listed = admin.herder("users", "list").splitlines()
    assert listed[0].split() == ["ID", "USERNAME", "DISPLAY", "NAME", "STATE"]
    assert any(line.split()[1:2] == ["polly"] for line in listed[1:])
    assert "user polly deleted, with 1 token and 1 global role binding" in admin.herder(
        "users", "delete", "polly", "--yes"
    )
    assert "not found" in admin.expect_failure("users", "delete", "polly", "--yes")
    assert "log in again with: herder login" in polly.expect_failure("get", "clusters")


def test_logout_revokes_the_token_and_removes_the_login(manager: Manager) -> None:
    jolly = manager.user("jolly")
    kept = jolly.kubeconfig.read_text()
    assert f"Logged out of {manager.url}" in jolly.herder("logout")
    assert "token" not in jolly.kubeconfig.read_text()
    jolly.kubeconfig.write_text(kept)
    assert "log in again with: herder login" in jolly.expect_failure("get", "clusters")


def test_grants_are_listed_and_revoked(manager: Manager) -> None:
    holly, admin = manager.user("holly"), manager.administrator
    rows = [line.split() for line in admin.herder("grant", "holly", "--list").splitlines()]
    assert rows == [["SCOPE", "ROLE", "SUBJECT", "BINDING"], ["global", "user", "holly", rows[1][3]]]
    assert "cannot" in holly.expect_failure("grant", "holly", "--global-role", "admin")
    assert "RoleTemplate shepherd not found" in admin.expect_failure(
        "grant", "holly", "--cluster", "local", "--role", "shepherd"
    )
    admin.herder("grant", "holly", "--cluster", "local", "--role", "member")
    assert "cluster local" in admin.herder("grant", "holly", "--list")
    assert "role cluster-member of holly in cluster local revoked" in admin.herder(
        "revoke", "holly", "--cluster", "local", "--role", "member"
    )
    assert "has no" in admin.expect_failure("revoke", "holly", "--cluster", "local", "--role", "member")


def test_a_binding_by_principal_is_listed_and_revoked(manager: Manager) -> None:
    """A user who keeps such a binding keeps the role, whatever the command says."""
    manager.user("polly")
    admin = manager.administrator
    id_ = next(line.split()[0] for line in admin.herder("users", "list").splitlines() if " polly " in line)
    binding = {
        "apiVersion": CLUSTER_BINDING.api_version,
        "kind": CLUSTER_BINDING.kind,
        "metadata": {"name": "by-principal", "namespace": "local"},
        "clusterName": "local",
        "roleTemplateName": "cluster-member",
        "userPrincipalName": f"{LOCAL_PRINCIPAL}{id_}",
    }
    admin.kubectl("create", "-f", "-", stdin=json.dumps(binding))
    assert "by-principal" in admin.herder("grant", "polly", "--list")
    assert "already has" in admin.herder("grant", "polly", "--cluster", "local", "--role", "member")
    admin.herder("revoke", "polly", "--cluster", "local", "--role", "member")
    assert "by-principal" not in admin.herder("grant", "polly", "--list")
