"""Single decisions about managed clusters."""

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
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Create, Decision, Delete, Patch
from herder.engine.runtime.view import Observed
from tests.support.views import NOW, view_of
from tests.unit.controllers.inmemory.stage import flat

CLUSTER = "c-m-bcdfghjk"


def made(
    kind: Kind, name: str, namespace: str = "", *, going: bool = False, meta: Object | None = None, **parts: object
) -> Object:
    whole: Object = {"name": name, "uid": f"{kind.kind}-{name}", "resourceVersion": "7"}
    if namespace:
        whole["namespace"] = namespace
    if going:
        whole["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    whole |= meta or {}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": whole, **parts}


def management(name: str = CLUSTER, *, of: str = "ws/meadow", going: bool = False, **status: object) -> Object:
    marks = {names.PROVISIONING_CLUSTER_OF: of} if of else {}
    meta = {"finalizers": [names.REMOVE_MANAGEMENT], "annotations": marks}
    spec = {"fleetWorkspaceName": of.partition("/")[0]}
    return made(MANAGEMENT_CLUSTER, name, going=going, meta=meta, spec=spec, status=status)


def provisioning(*, annotations: dict[str, str] | None = None, going: bool = False, **status: object) -> Object:
    meta = {"finalizers": [names.REMOVE_PROVISIONING], "annotations": annotations or {}}
    return made(PROVISIONING_CLUSTER, "meadow", "ws", going=going, meta=meta, spec={}, status=status)


def decide(controller: Controller, key: str, *objects: Object, **values: str) -> Decision:
    return controller.reconcile(view_of(controller, key, objects, settings=Settings(flags=values).get))


# --- whose rights go by its name --------------------------------------------------------------------------------------


def test_rights_end_before_another_cluster_can_have_the_name() -> None:
    """Another user may create the next one at once, and the owner of this one must not have rights to it."""
    for controller, key, cluster, kind in (
        (provisioning_cluster.CONTROLLER, "ws/meadow", provisioning(going=True), ROLE_BINDING),
        (management_cluster.CONTROLLER, f"/{CLUSTER}", management(of="", going=True), CLUSTER_ROLE_BINDING),
    ):
        owner = {"kind": "Cluster", "name": cluster["metadata"]["name"], "uid": cluster["metadata"]["uid"]}
        binding = made(
            kind, "crtb-1-membership", cluster["metadata"].get("namespace", ""), meta={"ownerReferences": [owner]}
        )
        ended, released = flat(decide(controller, key, cluster, binding))
        assert isinstance(ended, Delete)
        assert ended.ref.kind == kind
        assert isinstance(released, Patch)
        assert released.patch["metadata"]["finalizers"] == []


# --- whose management Cluster it is ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "is_ours"),
    [
        (management(), True),
        (management(of="ws/other"), False),
        (management(of="other/meadow"), False),
        (management(of=""), False),
        (made(MANAGEMENT_CLUSTER, "local", spec={"fleetWorkspaceName": "fleet-local", "internal": True}), False),
    ],
)
def test_what_a_provisioning_cluster_says_is_no_proof_of_whose_a_management_cluster_is(
    known: Object, is_ours: bool
) -> None:
    name = known["metadata"]["name"]
    assert clusters.are_paired(known, "ws", "meadow") is is_ours
    told = decide(provisioning_cluster.CONTROLLER, "ws/meadow", provisioning(clusterName=name), known)
    removal = decide(provisioning_cluster.CONTROLLER, "ws/meadow", provisioning(clusterName=name, going=True), known)
    assert (told.wait is None) is is_ours
    assert any(isinstance(write, Delete) for write in flat(removal)) is is_ours


@pytest.mark.parametrize("workspace", ["", "elsewhere"])
def test_a_management_cluster_goes_with_its_provisioning_cluster_wherever_it_was_moved(workspace: str) -> None:
    """With its registration token, machines would be taken into the next cluster of the same name."""
    moved = management() | {"spec": {"fleetWorkspaceName": workspace}}
    going = provisioning(clusterName=CLUSTER, going=True)
    deleted = [
        write.ref
        for write in flat(decide(provisioning_cluster.CONTROLLER, "ws/meadow", going, moved))
        if isinstance(write, Delete)
    ]
    assert [(each.kind, each.name) for each in deleted] == [(MANAGEMENT_CLUSTER, CLUSTER)]


@pytest.mark.parametrize("status", [{"clusterName": "c-abcde"}, {}], ids=["named", "not named yet"])
def test_the_pair_of_a_management_cluster_goes_with_it(status: Object) -> None:
    """Whoever creates a management Cluster of that name next would own it."""
    of_old = {"fleetWorkspaceName": "ws"}
    meta = {"finalizers": [names.REMOVE_MANAGEMENT]}
    known = made(MANAGEMENT_CLUSTER, "c-abcde", going=True, meta=meta, spec=of_old)
    pair = made(PROVISIONING_CLUSTER, "c-abcde", "ws", spec={}, status=status)
    (write,) = flat(decide(management_cluster.CONTROLLER, "/c-abcde", known, pair))
    assert isinstance(write, Delete)
    assert (write.ref.kind, write.ref.name) == (PROVISIONING_CLUSTER, "c-abcde")
    (write,) = flat(decide(management_cluster.CONTROLLER, "/c-abcde", known))
    assert isinstance(write, Patch), "then its finalizer is removed"


@pytest.mark.parametrize("name", ["kube-system", "local", "team", "c-m-abc-p-x"])
def test_no_management_cluster_is_made_of_a_name_that_only_a_status_has(name: str) -> None:
    """A management Cluster owns the namespace of its name."""
    told = decide(provisioning_cluster.CONTROLLER, "ws/meadow", provisioning(clusterName=name))
    assert not any(isinstance(write, Create) for write in flat(told))
    assert told.wait is not None
    assert "cannot be the name of a management Cluster" in told.wait.reason


@pytest.mark.parametrize("of", ["ws/meadow", "fleet-default/victim", ""])
def test_a_log_goes_into_no_namespace_that_only_a_status_names(of: str) -> None:
    condition = {
        "type": "Updated",
        "status": "Unknown",
        "message": "news",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    known = {**provisioning(clusterName=CLUSTER, conditions=[condition]), "spec": {"rkeConfig": {}}}
    objects = [known, made(NAMESPACE, CLUSTER), *([management(of=of)] if of else [])]
    decision = decide(provisioning_log.CONTROLLER, "ws/meadow", *objects)
    written = [write.obj["metadata"]["namespace"] for write in flat(decision) if isinstance(write, Create)]
    assert (CLUSTER in written) is (of == "ws/meadow")


def test_a_name_asked_for_is_checked() -> None:
    decision = decide(
        provisioning_cluster.CONTROLLER,
        "ws/meadow",
        provisioning(annotations={names.MANAGEMENT_NAME: "../kube-system"}),
    )
    assert decision.wait is not None
    assert names.MANAGEMENT_NAME in decision.wait.reason


def test_the_name_is_written_down_before_the_management_cluster_is_made() -> None:
    (first,) = flat(decide(provisioning_cluster.CONTROLLER, "ws/meadow", provisioning()))
    assert isinstance(first, Patch)
    name = first.patch["status"]["clusterName"]
    assert name.startswith("c-m-")
    assert len(name) == len(CLUSTER)
    (second,) = flat(decide(provisioning_cluster.CONTROLLER, "ws/meadow", provisioning(clusterName=name)))
    assert isinstance(second, Create)
    assert second.obj["metadata"]["name"] == name


def test_nobody_but_the_gateway_says_that_a_cluster_is_connected() -> None:
    forged = {names.CONNECTED_SINCE: "2026-01-01T00:00:00Z", "mine": "yes"}
    made_of_it = clusters.management_of(provisioning(annotations=forged), CLUSTER)
    assert not clusters.is_connected(made_of_it)
    assert made_of_it["metadata"]["annotations"]["mine"] == "yes"


# --- its namespace --------------------------------------------------------------------------------------------------


def test_a_namespace_that_was_there_before_is_not_taken_over() -> None:
    decision = decide(
        management_cluster.CONTROLLER, "kube-system", management("kube-system"), made(NAMESPACE, "kube-system")
    )
    assert decision.wait is not None
    assert "choose another name" in decision.wait.reason
    assert not [write for write in flat(decision) if isinstance(write, Create)]


# --- registration tokens --------------------------------------------------------------------------------------------


def registration(cluster: str = CLUSTER, **status: object) -> Object:
    return made(REGISTRATION_TOKEN, "default-token", CLUSTER, spec={"clusterName": cluster}, status=status)


SECRET_OF_IT = made(SECRET, "crt-token-default-token", CLUSTER)
FRESH = {"expiresAt": "2026-01-02T12:00:00Z"}


def test_a_token_is_for_the_cluster_of_its_namespace_alone() -> None:
    decision = decide(cluster_registration_token.CONTROLLER, f"{CLUSTER}/default-token", registration("c-m-other"))
    assert not decision.effects
    assert decision.wait is not None
    assert decision.wait.reason.startswith("spec.clusterName: ")


def test_commands_hold_a_placeholder_and_the_pinned_certificates() -> None:
    pem = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----"
    flags = {"server-url": "https://herder.example.com/", "cacerts": pem}
    key = f"{CLUSTER}/default-token"
    decision = decide(cluster_registration_token.CONTROLLER, key, registration(**FRESH), SECRET_OF_IT, **flags)
    (write,) = flat(decision)
    assert isinstance(write, Patch)
    status = write.patch["status"]
    assert status["manifestUrl"] == f"https://herder.example.com/v3/import/{{token}}_{CLUSTER}.yaml"
    assert status["command"] == f"kubectl apply -f {status['manifestUrl']}"
    server = "https://herder.example.com"
    assert status["nodeCommand"] == (
        f"curl -fL {server}/system-agent-install.sh | sudo sh -s - --server {server} "
        f"--label 'cattle.io/os=linux' --token {{token}} --ca-checksum {ca_checksum(pem)}"
    )
    assert status["token"] == ""
    assert decision.wake_at is not None
    assert decision.wake_at > NOW


def test_without_a_url_it_says_what_is_missing() -> None:
    decision = decide(
        cluster_registration_token.CONTROLLER, f"{CLUSTER}/default-token", registration(**FRESH), SECRET_OF_IT
    )
    assert decision.wait is not None
    assert "server-url" in decision.wait.reason


def test_a_connected_agent_is_brought_each_token_that_replaces_its_own() -> None:
    pair, token = provisioning(clusterName=CLUSTER, clientSecretName="meadow-kubeconfig"), registration(**FRESH)
    away, here = management(), management()
    here["metadata"]["annotations"][names.CONNECTED_SINCE] = "2026-01-01T11:00:00Z"
    knows = management(agentTokenExpiresAt=FRESH["expiresAt"])
    knows["metadata"]["annotations"][names.CONNECTED_SINCE] = "2026-01-01T11:00:00Z"
    asked = [
        [effect.performer for effect in decide(management_cluster.CONTROLLER, f"/{CLUSTER}", each, pair, token).effects]
        for each in (away, here, knows)
    ]
    assert asked == [[], [names.PUSH_TOKEN], []]


# --- its kubeconfig -------------------------------------------------------------------------------------------------

URL = {"server-url": "https://herder.example.com"}


def test_a_cluster_that_has_been_connected_gets_a_kubeconfig() -> None:
    never = decide(provisioning_cluster.CONTROLLER, "ws/meadow", provisioning(clusterName=CLUSTER), management(), **URL)
    assert not never.effects
    been = provisioning(clusterName=CLUSTER, ready=True)
    (asked,) = decide(provisioning_cluster.CONTROLLER, "ws/meadow", been, management(), **URL).effects
    assert asked.arguments["management"] == CLUSTER
    assert not decide(provisioning_cluster.CONTROLLER, "ws/meadow", been, management()).effects, "no URL, no kubeconfig"


def test_a_kubeconfig_is_made_again_when_what_it_says_has_changed() -> None:
    been, secret = provisioning(clusterName=CLUSTER, ready=True), made(SECRET, "meadow-kubeconfig", "ws")
    (first,) = decide(provisioning_cluster.CONTROLLER, "ws/meadow", been, management(), secret, **URL).effects
    for objects, flags in (
        ([secret], URL | {"server-url": "https://elsewhere.example.com"}),
        ([secret], URL | {"cacerts": "others"}),
        ([secret], URL | {"internal-server-url": "https://herder.svc"}),
        ([secret], URL | {"internal-cacerts": "others"}),
        ([], URL),  # it was deleted
    ):
        (again,) = decide(provisioning_cluster.CONTROLLER, "ws/meadow", been, management(), *objects, **flags).effects
        assert again.key != first.key


# --- what is known of a cluster -------------------------------------------------------------------------------------


def test_info_is_what_its_nodes_tell_while_it_is_connected() -> None:
    nodes = (
        {"metadata": {"name": "a"}, "version": "v1.34.1", "arch": "amd64"},
        {"metadata": {"name": "b"}, "version": "v1.33.9", "arch": "amd64"},
    )
    connected = management(apiEndpoint="https://10.0.0.1:443")
    connected["metadata"]["annotations"][names.CONNECTED_SINCE] = "2026-01-01T11:00:00Z"
    home = made(NAMESPACE, CLUSTER, meta={"ownerReferences": [{"uid": connected["metadata"]["uid"], "name": CLUSTER}]})
    view = view_of(
        management_cluster.CONTROLLER,
        f"/{CLUSTER}",
        [connected, home, provisioning(clusterName=CLUSTER, clientSecretName="meadow-kubeconfig")],
        observed=lambda _wish: Observed(nodes, NOW),
    )
    decision = management_cluster.CONTROLLER.reconcile(view)
    status = next(write.patch["status"] for write in flat(decision) if isinstance(write, Patch))
    assert status["info"] == {
        "nodeCount": 2,
        "machineProvider": "imported",
        "kubernetesVersion": "v1.33.9",
        "arch": "amd64",
        "provisioningClusterRef": {"name": "meadow", "namespace": "ws"},
    }
    turned = {each["type"]: each["lastTransitionTime"] for each in status["conditions"]}
    assert turned["Connected"] == "2026-01-01T11:00:00Z", "since the tunnel was there"
    (wish,) = decision.observe
    assert wish.cluster == CLUSTER, "through its tunnel, by the one connection that there is to it"
