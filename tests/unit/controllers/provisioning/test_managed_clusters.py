"""Decisions of the controllers of provisioning Clusters, management Clusters and registration tokens."""

from __future__ import annotations

import pytest

from herder.api.capi.kinds import NAMESPACE, SECRET
from herder.api.identity.roles import CLUSTER_ROLE_BINDING
from herder.api.machines.jobs import ROLE_BINDING
from herder.api.management import clusters, names
from herder.api.management.commands import ca_checksum
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER, REGISTRATION_TOKEN
from herder.api.settings import Settings
from herder.controllers.provisioning import cluster_registration_token, provisioning_log
from herder.controllers.provisioning.cluster import controller as provisioning_cluster
from herder.controllers.provisioning.management_cluster import controller as management_cluster
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Create, Decision, Delete, Patch
from herder.engine.runtime.view import Observed
from tests.support.builders import NOW, new_condition, new_object, owner_reference, patches_of, reconcile, writes_of
from tests.unit.controllers.provisioning.objects import (
    MANAGEMENT_NAME,
    new_management_cluster,
    new_provisioning_cluster,
)


def decide(controller: Controller, key: str, *objects: Object, **values: str) -> Decision:
    return reconcile(controller, key, *objects, settings=Settings(flags=values).get)


# --- rights by name ---------------------------------------------------------------------------------------------------


def test_rights_end_before_another_cluster_can_take_the_name() -> None:
    """Another user may create the next cluster at once, and the owner of this one must not have rights on it."""
    for controller, key, cluster, kind in (
        (provisioning_cluster.CONTROLLER, "ws/meadow", new_provisioning_cluster(deleting=True), ROLE_BINDING),
        (
            management_cluster.CONTROLLER,
            f"/{MANAGEMENT_NAME}",
            new_management_cluster(created_for="", deleting=True),
            CLUSTER_ROLE_BINDING,
        ),
    ):
        owner = {"kind": "Cluster", "name": cluster["metadata"]["name"], "uid": cluster["metadata"]["uid"]}
        binding = new_object(kind, "crtb-1-membership", cluster["metadata"].get("namespace", ""), owners=[owner])
        revoked, released = writes_of(decide(controller, key, cluster, binding))
        assert isinstance(revoked, Delete)
        assert revoked.ref.kind == kind
        assert isinstance(released, Patch)
        assert released.patch["metadata"]["finalizers"] == []


# --- pairs of provisioning and management Clusters ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("management", "paired"),
    [
        (new_management_cluster(), True),
        (new_management_cluster(created_for="ws/other"), False),
        (new_management_cluster(created_for="other/meadow"), False),
        (new_management_cluster(created_for=""), False),
        (new_object(MANAGEMENT_CLUSTER, "local", spec={"fleetWorkspaceName": "fleet-local", "internal": True}), False),
    ],
)
def test_the_status_of_a_provisioning_cluster_does_not_prove_its_management_cluster(
    management: Object, paired: bool
) -> None:
    name = management["metadata"]["name"]
    assert clusters.are_paired(management, "ws", "meadow") is paired
    decision = decide(
        provisioning_cluster.CONTROLLER, "ws/meadow", new_provisioning_cluster(clusterName=name), management
    )
    removal = decide(
        provisioning_cluster.CONTROLLER,
        "ws/meadow",
        new_provisioning_cluster(clusterName=name, deleting=True),
        management,
    )
    assert (decision.wait is None) is paired
    assert any(isinstance(write, Delete) for write in writes_of(removal)) is paired


@pytest.mark.parametrize("workspace", ["", "elsewhere"])
def test_a_moved_management_cluster_is_deleted_with_its_provisioning_cluster(workspace: str) -> None:
    """Otherwise machines could register in the next cluster of the same name with the old registration token."""
    moved = new_management_cluster() | {"spec": {"fleetWorkspaceName": workspace}}
    deleting = new_provisioning_cluster(clusterName=MANAGEMENT_NAME, deleting=True)
    deleted = [
        write.ref
        for write in writes_of(decide(provisioning_cluster.CONTROLLER, "ws/meadow", deleting, moved))
        if isinstance(write, Delete)
    ]
    assert [(each.kind, each.name) for each in deleted] == [(MANAGEMENT_CLUSTER, MANAGEMENT_NAME)]


def test_all_management_clusters_of_a_provisioning_cluster_are_deleted_with_it() -> None:
    """Editors can write another name into the status. The owners of the former one must not keep their rights."""
    former, current = new_management_cluster(), new_management_cluster("c-another")
    foreign = new_management_cluster("c-foreign", created_for="ws/another")
    deleting = new_provisioning_cluster(clusterName="c-another", deleting=True)
    writes = writes_of(decide(provisioning_cluster.CONTROLLER, "ws/meadow", deleting, former, current, foreign))
    deleted = {write.ref.name for write in writes if isinstance(write, Delete)}
    assert deleted == {MANAGEMENT_NAME, "c-another"}


@pytest.mark.parametrize("status", [{"clusterName": "c-abcde"}, {}], ids=["named", "not named yet"])
def test_a_provisioning_cluster_is_deleted_with_its_management_cluster(status: Object) -> None:
    """Otherwise it would belong to whoever creates the next management Cluster of that name."""
    spec, finalizers = {"fleetWorkspaceName": "ws"}, [names.REMOVE_MANAGEMENT]
    management = new_object(MANAGEMENT_CLUSTER, "c-abcde", deleting=True, finalizers=finalizers, spec=spec)
    pair = new_object(PROVISIONING_CLUSTER, "c-abcde", "ws", spec={}, status=status)
    (write,) = writes_of(decide(management_cluster.CONTROLLER, "/c-abcde", management, pair))
    assert isinstance(write, Delete)
    assert (write.ref.kind, write.ref.name) == (PROVISIONING_CLUSTER, "c-abcde")
    (write,) = writes_of(decide(management_cluster.CONTROLLER, "/c-abcde", management))
    assert isinstance(write, Patch), "without a pair, its finalizer is removed"


@pytest.mark.parametrize(("created_for", "is_legacy"), [("", True), ("ws/meadow", False)])
def test_a_chosen_name_gets_no_second_provisioning_cluster(created_for: str, is_legacy: bool) -> None:
    """It would outlast the user's own, and keep the name, without an owner."""
    marks = {names.PROVISIONING_CLUSTER_OF: created_for} if created_for else {}
    spec, finalizers = {"fleetWorkspaceName": "ws"}, [names.REMOVE_MANAGEMENT]
    management = new_object(MANAGEMENT_CLUSTER, "c-again", annotations=marks, finalizers=finalizers, spec=spec)
    writes = writes_of(decide(management_cluster.CONTROLLER, "/c-again", management))
    created = {write.obj["kind"] for write in writes if isinstance(write, Create) and write.kind != NAMESPACE}
    assert created == ({PROVISIONING_CLUSTER.kind} if is_legacy else set())


@pytest.mark.parametrize("name", ["kube-system", "local", "team", "c-m-abc-p-x"])
def test_no_management_cluster_is_created_under_an_invalid_name_in_a_status(name: str) -> None:
    """A management Cluster owns the namespace of its name."""
    decision = decide(provisioning_cluster.CONTROLLER, "ws/meadow", new_provisioning_cluster(clusterName=name))
    assert not any(isinstance(write, Create) for write in writes_of(decision))
    assert decision.wait is not None
    assert "cannot be the name of a management Cluster" in decision.wait.reason


def test_a_status_does_not_choose_the_generated_name_of_another_cluster() -> None:
    """Kubeconfigs outlive a cluster: those of a deleted one would lead to the cluster of whoever writes this status."""
    former = new_provisioning_cluster(clusterName="c-m-abcdefgh")
    (write,) = writes_of(decide(provisioning_cluster.CONTROLLER, "ws/meadow", former))
    (own,) = writes_of(decide(provisioning_cluster.CONTROLLER, "ws/meadow", new_provisioning_cluster()))
    assert isinstance(write, Patch)
    assert isinstance(own, Patch)
    assert write.patch["status"]["clusterName"] == own.patch["status"]["clusterName"] != "c-m-abcdefgh"


@pytest.mark.parametrize("created_for", ["ws/meadow", "fleet-default/victim", ""])
def test_no_log_is_written_to_a_namespace_that_only_a_status_names(created_for: str) -> None:
    condition = new_condition("Updated", "Unknown", message="news")
    provisioning = {
        **new_provisioning_cluster(clusterName=MANAGEMENT_NAME, conditions=[condition]),
        "spec": {"rkeConfig": {}},
    }
    objects = [
        provisioning,
        new_object(NAMESPACE, MANAGEMENT_NAME),
        *([new_management_cluster(created_for=created_for)] if created_for else []),
    ]
    decision = decide(provisioning_log.CONTROLLER, "ws/meadow", *objects)
    written = [write.obj["metadata"]["namespace"] for write in writes_of(decision) if isinstance(write, Create)]
    assert (MANAGEMENT_NAME in written) is (created_for == "ws/meadow")


def test_a_requested_name_is_validated() -> None:
    decision = decide(
        provisioning_cluster.CONTROLLER,
        "ws/meadow",
        new_provisioning_cluster(annotations={names.MANAGEMENT_NAME: "../kube-system"}),
    )
    assert decision.wait is not None
    assert names.MANAGEMENT_NAME in decision.wait.reason


def test_the_name_is_recorded_before_the_management_cluster_is_created() -> None:
    (first,) = writes_of(decide(provisioning_cluster.CONTROLLER, "ws/meadow", new_provisioning_cluster()))
    assert isinstance(first, Patch)
    name = first.patch["status"]["clusterName"]
    assert name.startswith("c-m-")
    assert len(name) == len(MANAGEMENT_NAME)
    (second,) = writes_of(
        decide(provisioning_cluster.CONTROLLER, "ws/meadow", new_provisioning_cluster(clusterName=name))
    )
    assert isinstance(second, Create)
    assert second.obj["metadata"]["name"] == name


def test_users_cannot_mark_a_cluster_as_connected() -> None:
    forged = {names.CONNECTED_SINCE: "2026-01-01T00:00:00Z", "mine": "yes"}
    management = clusters.management_of(new_provisioning_cluster(annotations=forged), MANAGEMENT_NAME)
    assert not clusters.is_connected(management)
    assert management["metadata"]["annotations"]["mine"] == "yes"


# --- namespaces -----------------------------------------------------------------------------------------------------


def test_an_existing_namespace_is_not_adopted() -> None:
    decision = decide(
        management_cluster.CONTROLLER,
        "kube-system",
        new_management_cluster("kube-system"),
        new_object(NAMESPACE, "kube-system"),
    )
    assert decision.wait is not None
    assert "choose another name" in decision.wait.reason
    assert not [write for write in writes_of(decision) if isinstance(write, Create)]


# --- registration tokens --------------------------------------------------------------------------------------------


def registration(cluster: str = MANAGEMENT_NAME, **status: object) -> Object:
    return new_object(
        REGISTRATION_TOKEN, "default-token", MANAGEMENT_NAME, spec={"clusterName": cluster}, status=status
    )


TOKEN_SECRET = new_object(SECRET, "crt-token-default-token", MANAGEMENT_NAME)
FRESH = {"expiresAt": "2026-01-02T12:00:00Z"}
REGISTERED_CLUSTER = new_object(MANAGEMENT_CLUSTER, MANAGEMENT_NAME)


@pytest.mark.parametrize(
    "cluster",
    [(), (new_object(MANAGEMENT_CLUSTER, MANAGEMENT_NAME, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),)],
    ids=["deleted", "being deleted"],
)
def test_no_token_is_issued_for_a_deleted_cluster(cluster: tuple[Object, ...]) -> None:
    """Its namespace is deleted, too: the effect would fail and be repeated."""
    key = f"{MANAGEMENT_NAME}/default-token"
    decision = decide(cluster_registration_token.CONTROLLER, key, registration(), *cluster)
    assert not decision.effects
    assert not decision.writes


def test_a_registration_token_belongs_to_the_cluster_of_its_namespace() -> None:
    decision = decide(
        cluster_registration_token.CONTROLLER,
        f"{MANAGEMENT_NAME}/default-token",
        registration("c-m-other"),
        REGISTERED_CLUSTER,
    )
    assert not decision.effects
    assert decision.wait is not None
    assert decision.wait.reason.startswith("spec.clusterName: ")


def test_commands_contain_a_placeholder_and_the_ca_checksum() -> None:
    pem = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----"
    flags = {"server-url": "https://herder.example.com/", "cacerts": pem}
    key = f"{MANAGEMENT_NAME}/default-token"
    objects = (registration(**FRESH), TOKEN_SECRET, REGISTERED_CLUSTER)
    decision = decide(cluster_registration_token.CONTROLLER, key, *objects, **flags)
    (write,) = writes_of(decision)
    assert isinstance(write, Patch)
    status = write.patch["status"]
    assert status["manifestUrl"] == f"https://herder.example.com/v3/import/{{token}}_{MANAGEMENT_NAME}.yaml"
    assert status["command"] == f"kubectl apply -f {status['manifestUrl']}"
    server = "https://herder.example.com"
    assert status["nodeCommand"] == (
        f"curl -fL {server}/system-agent-install.sh | sudo sh -s - --server {server} "
        f"--label 'cattle.io/os=linux' --token {{token}} --ca-checksum {ca_checksum(pem)}"
    )
    assert status["token"] == ""
    assert decision.wake_at is not None
    assert decision.wake_at > NOW


def test_a_missing_server_url_is_reported() -> None:
    decision = decide(
        cluster_registration_token.CONTROLLER,
        f"{MANAGEMENT_NAME}/default-token",
        registration(**FRESH),
        TOKEN_SECRET,
        REGISTERED_CLUSTER,
    )
    assert decision.wait is not None
    assert "server-url" in decision.wait.reason


def test_a_connected_agent_gets_each_new_token() -> None:
    pair, token = (
        new_provisioning_cluster(clusterName=MANAGEMENT_NAME, clientSecretName="meadow-kubeconfig"),
        registration(**FRESH),
    )
    disconnected, connected = new_management_cluster(), new_management_cluster()
    connected["metadata"]["annotations"][names.CONNECTED_SINCE] = "2026-01-01T11:00:00Z"
    up_to_date = new_management_cluster(agentTokenExpiresAt=FRESH["expiresAt"])
    up_to_date["metadata"]["annotations"][names.CONNECTED_SINCE] = "2026-01-01T11:00:00Z"
    performers = [
        [
            effect.performer
            for effect in decide(management_cluster.CONTROLLER, f"/{MANAGEMENT_NAME}", each, pair, token).effects
        ]
        for each in (disconnected, connected, up_to_date)
    ]
    assert performers == [[], [names.PUSH_TOKEN], []]


# --- kubeconfigs ----------------------------------------------------------------------------------------------------

URL = {"server-url": "https://herder.example.com"}
ENDPOINT = {"apiEndpoint": "https://10.43.0.1:443"}


def test_a_cluster_gets_a_kubeconfig_once_it_has_connected() -> None:
    disconnected = decide(
        provisioning_cluster.CONTROLLER,
        "ws/meadow",
        new_provisioning_cluster(clusterName=MANAGEMENT_NAME),
        new_management_cluster(),
        **URL,
    )
    assert not disconnected.effects
    cluster, connected = new_provisioning_cluster(clusterName=MANAGEMENT_NAME), new_management_cluster(**ENDPOINT)
    (effect,) = decide(provisioning_cluster.CONTROLLER, "ws/meadow", cluster, connected, **URL).effects
    assert effect.arguments["management"] == MANAGEMENT_NAME
    assert not decide(provisioning_cluster.CONTROLLER, "ws/meadow", cluster, connected).effects, (
        "without a URL there is no kubeconfig"
    )


def test_a_kubeconfig_is_recreated_when_its_content_changes() -> None:
    connected, secret = (
        new_provisioning_cluster(clusterName=MANAGEMENT_NAME, clientSecretName="meadow-kubeconfig"),
        new_object(SECRET, "meadow-kubeconfig", "ws"),
    )
    (first,) = decide(
        provisioning_cluster.CONTROLLER, "ws/meadow", connected, new_management_cluster(), secret, **URL
    ).effects
    for objects, flags in (
        ([secret], URL | {"server-url": "https://elsewhere.example.com"}),
        ([secret], URL | {"cacerts": "others"}),
        ([secret], URL | {"internal-server-url": "https://herder.svc"}),
        ([secret], URL | {"internal-cacerts": "others"}),
        ([], URL),  # the Secret was deleted
    ):
        (again,) = decide(
            provisioning_cluster.CONTROLLER, "ws/meadow", connected, new_management_cluster(), *objects, **flags
        ).effects
        assert again.key != first.key


# --- info -----------------------------------------------------------------------------------------------------------


def test_a_connected_cluster_reports_info_about_its_nodes() -> None:
    lost = ["Node b", "2026-01-01T11:30:00Z", "Kubelet stopped posting node status."]
    nodes = (
        {"metadata": {"name": "a"}, "version": "v1.34.1", "arch": "amd64", "lost": []},
        {"metadata": {"name": "b"}, "version": "v1.33.9", "arch": "amd64", "lost": lost},
    )
    connected = new_management_cluster(apiEndpoint="https://10.0.0.1:443")
    connected["metadata"]["annotations"][names.CONNECTED_SINCE] = "2026-01-01T11:00:00Z"
    owner = owner_reference(MANAGEMENT_CLUSTER, MANAGEMENT_NAME, controller=False)
    decision = reconcile(
        management_cluster.CONTROLLER,
        f"/{MANAGEMENT_NAME}",
        connected,
        new_object(NAMESPACE, MANAGEMENT_NAME, owners=[owner]),
        new_provisioning_cluster(clusterName=MANAGEMENT_NAME, clientSecretName="meadow-kubeconfig"),
        observed=lambda _request: Observed(nodes, NOW),
    )
    status = patches_of(decision)[0].patch["status"]
    assert status["info"] == {
        "nodeCount": 2,
        "machineProvider": "imported",
        "kubernetesVersion": "v1.33.9",
        "arch": "amd64",
        "provisioningClusterRef": {"name": "meadow", "namespace": "ws"},
    }
    message = "Node b is not ready since 2026-01-01T11:30:00Z: Kubelet stopped posting node status."
    assert status["display"] == {"state": "Degraded", "message": message, "readyNodes": "1/2"}
    transition_times = {each["type"]: each["lastTransitionTime"] for each in status["conditions"]}
    assert transition_times["Connected"] == "2026-01-01T11:00:00Z", "since the tunnel was connected"
    (request,) = decision.observe
    assert request.cluster == MANAGEMENT_NAME, "through the one connection of its tunnel"
