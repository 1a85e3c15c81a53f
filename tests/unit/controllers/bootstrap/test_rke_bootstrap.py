"""Objects that are created for a machine before it starts, and when."""

from __future__ import annotations

import pytest

from herder.api.capi.kinds import SECRET
from herder.api.identity.tenancy.secrets import ISSUED_LABELS
from herder.api.machines.jobs import ROLE, ROLE_BINDING
from herder.api.rke import names
from herder.api.rke.kinds import BOOTSTRAP
from herder.controllers.bootstrap import objects, rke_bootstrap
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Create, Decision, Delete, Patch
from tests.support.builders import new_object, only_patch, owner_reference, patches_of, summaries, writes_of
from tests.support.views import view_of
from tests.unit.controllers.bootstrap.objects import (
    NAME,
    NAMESPACE,
    accounts,
    bootstrap,
    cluster,
    control_plane,
    decide,
    machine,
    machine_objects,
)

PLAN, SCRIPT = f"{NAME}-machine-plan", f"{NAME}-machine-bootstrap"


def rendered(decision: Decision) -> Object:
    """The bootstrap Secret that the effect of the decision creates."""
    (effect,) = decision.effects
    return new_object(SECRET, SCRIPT, NAMESPACE, metadata=dict(effect.arguments["metadata"]))


# --- preconditions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed_object", "reason"),
    [
        (bootstrap(owned=False), "waiting for the Machine controller to set the owner reference"),
        (cluster(paused=True), "reconciliation is paused"),
        (bootstrap(annotations={"cluster.x-k8s.io/paused": ""}), "reconciliation is paused"),
        (cluster(provisioned=False), "the cluster's infrastructure is not provisioned"),
    ],
)
def test_nothing_is_created_before_the_cluster_is_ready(changed_object: Object, reason: str) -> None:
    decision = decide(*machine_objects(changed_object))
    assert decision.wait is not None
    assert decision.wait.reason == reason
    assert decision.writes == ()
    assert decision.effects == ()


# --- the plan --------------------------------------------------------------------------------------------------------


def test_a_machine_gets_an_account_with_access_only_to_its_plan() -> None:
    decision = decide(*machine_objects())
    assert sorted(summaries(decision)) == sorted(
        [
            f"Create ServiceAccount {PLAN}",
            f"Create Secret {PLAN}-token",
            f"Create Secret {PLAN}",
            f"Apply Role {PLAN}",
            f"Apply RoleBinding {PLAN}",
            f"Create ServiceAccount {SCRIPT}",
            f"Create Secret {SCRIPT}-token",
        ]
    )
    role = objects.plan_role(bootstrap())
    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": [PLAN],
            "verbs": ["get", "list", "watch", "update"],
        }
    ]


def test_a_plan_secret_identifies_its_machine_and_cluster() -> None:
    annotations = {"rke.cattle.io/address": "10.0.0.7"}
    secret = objects.plan_secret(bootstrap(annotations=annotations), machine(), cluster())
    assert secret["type"] == "rke.cattle.io/machine-plan"
    assert secret["metadata"]["annotations"] == annotations
    assert secret["metadata"]["labels"] == {
        "cluster.x-k8s.io/cluster-name": "meadow",
        "rke.cattle.io/worker-role": "true",
        "rke.cattle.io/machine-name": NAME,
        "rke.cattle.io/cluster-name": "meadow",
        "resources.cattle.io/backup": "true",
        "plan.cattle.io/cluster-group": "cluster.x-k8s.io",
        "plan.cattle.io/cluster-kind": "Cluster",
        "plan.cattle.io/cluster-name": "meadow",
        "plan.cattle.io/machine-group": "cluster.x-k8s.io",
        "plan.cattle.io/machine-kind": "Machine",
        "plan.cattle.io/machine-name": NAME,
    }


@pytest.mark.parametrize("label", ISSUED_LABELS)
def test_a_label_of_a_pool_does_not_make_the_plan_another_secret(label: str) -> None:
    """Admission refuses these labels to users, but does not check the manager, which copies labels of the pool."""
    bootstrap_object = bootstrap()
    bootstrap_object["metadata"]["labels"] = {label: "c-m-1", "zone": "a"}
    labels = objects.plan_secret(bootstrap_object, machine(), cluster())["metadata"]["labels"]
    assert label not in labels
    assert labels["zone"] == "a"


@pytest.mark.parametrize("annotation", [*objects.GRANTING_ANNOTATIONS, *objects.PLANNER_ANNOTATIONS])
def test_an_annotation_of_a_deployment_does_not_let_its_author_use_the_plan(annotation: str) -> None:
    """Admission refuses these annotations to users, but does not check the manager, which copies annotations of a
    MachineDeployment."""
    planted = bootstrap(annotations={annotation: "mallory", "zone": "a"})
    annotations = objects.plan_secret(planted, machine(), cluster())["metadata"]["annotations"]
    assert annotation not in annotations
    assert annotations["zone"] == "a"


PROGRESS = (
    "plan.herder.io/task",
    "plan.herder.io/attempts",
    "rke.cattle.io/plan-last-updated",
    "rke.cattle.io/uncordon",
)


@pytest.mark.parametrize("annotation", PROGRESS)
def test_an_annotation_of_a_bootstrap_does_not_report_progress_of_the_plan(annotation: str) -> None:
    """An operation would not end, or continue without the machine."""
    planted = bootstrap(annotations={annotation: "etcdSnapshotCreate-1-1795102883/Started/1"})
    assert annotation not in objects.plan_secret(planted, machine(), cluster())["metadata"].get("annotations", {})


def test_annotations_that_grant_a_plan_are_removed() -> None:
    """An earlier version copied them."""
    plan = objects.plan_secret(bootstrap(), machine(), cluster())
    plan["metadata"]["annotations"] |= dict.fromkeys(objects.GRANTING_ANNOTATIONS, "mallory")
    (patch,) = [each for each in patches_of(decide(*machine_objects(*accounts(), plan))) if each.ref.name == PLAN]
    assert patch.patch["metadata"] == {"annotations": dict.fromkeys(objects.GRANTING_ANNOTATIONS)}


@pytest.mark.parametrize(("role", "tainted"), [("worker", True), ("etcd", True), ("control-plane", False)])
def test_nodes_outside_the_control_plane_register_with_a_taint(role: str, tainted: bool) -> None:
    bootstrap_object = bootstrap()
    bootstrap_object["metadata"]["labels"] = {f"rke.cattle.io/{role}-role": "true"}
    annotations = objects.new_plan_secret(bootstrap_object, machine(), cluster())["metadata"]["annotations"]
    taint = '[{"key":"node.cluster.x-k8s.io/uninitialized","effect":"NoSchedule"}]'
    assert annotations == ({"bootstrap.herder.io/register-with-taints": taint} if tainted else {})


def test_annotations_of_the_bootstrap_reach_the_plan_secret() -> None:
    plan_secret = objects.plan_secret(bootstrap(), machine(), cluster())
    plan_secret["metadata"]["annotations"] = {"rke.cattle.io/join-url": "https://10.0.0.1:9345"}
    found = [each for each in accounts() if each["metadata"]["name"] != PLAN or each["kind"] != "Secret"]
    decision = decide(
        *machine_objects(bootstrap(annotations={"rke.cattle.io/address": "10.0.0.7"}), *found, plan_secret)
    )
    (write,) = patches_of(decision)
    assert write.patch == {"metadata": {"annotations": {"rke.cattle.io/address": "10.0.0.7"}}}


def test_annotations_removed_from_the_bootstrap_are_removed_from_the_plan_secret() -> None:
    plan_secret = objects.plan_secret(bootstrap(), machine(), cluster())
    node_annotations = {
        names.LABELS: '{"a":"b"}',
        names.TAINTS: "[]",
        names.ADDRESS: "10.0.0.7",
        names.INTERNAL_ADDRESS: "10.0.0.8",
    }
    plan_secret["metadata"]["annotations"] = {
        **node_annotations,
        names.JOIN_URL: "https://10.0.0.1:9345",
        "example.com/hook": "done",
    }
    found = [each for each in accounts() if each["metadata"]["name"] != PLAN or each["kind"] != "Secret"]
    decision = decide(*machine_objects(bootstrap(annotations={names.ADDRESS: "10.0.0.7"}), *found, plan_secret))
    (write,) = patches_of(decision)
    removed = dict.fromkeys((names.LABELS, names.TAINTS, names.INTERNAL_ADDRESS))
    assert write.patch == {"metadata": {"annotations": removed}}


def test_a_role_that_was_widened_is_restored() -> None:
    role = objects.plan_role(bootstrap())
    wide = {**role, "rules": [{**role["rules"][0], "resourceNames": []}]}
    found = [wide if each["kind"] == "Role" else each for each in accounts()]
    assert summaries(decide(*machine_objects(*found))) == [f"Apply Role {PLAN}"]


@pytest.mark.parametrize("kind", [ROLE, ROLE_BINDING])
def test_a_role_of_a_user_is_not_filled(kind: Kind) -> None:
    """Whoever bound it while it was empty would get the plan."""
    decision = decide(*machine_objects(new_object(kind, PLAN, NAMESPACE)))
    assert decision.wait is not None
    assert f"{kind.kind} {NAMESPACE}/{PLAN} has another owner" in decision.wait.reason
    assert summaries(decision) == [f"Patch RKEBootstrap {NAME}"], "only its status"


def test_a_role_with_a_truncated_name_is_replaced() -> None:
    """Earlier versions truncated long names of Roles, which users can create."""
    name = "m" * 60
    key, long_bootstrap = f"{NAMESPACE}/{name}", new_object(BOOTSTRAP, name, NAMESPACE)
    role, binding = (
        new_object(kind, names.plan_secret(name), NAMESPACE, owners=[owner_reference(BOOTSTRAP, name)])
        for kind in (ROLE, ROLE_BINDING)
    )
    view = view_of(rke_bootstrap.CONTROLLER, key, [long_bootstrap, role, binding])
    writes = rke_bootstrap._former_rbac(view, long_bootstrap)
    assert [write.ref.kind for write in writes if isinstance(write, Delete)] == [ROLE_BINDING, ROLE]
    role_of_user = new_object(ROLE, names.plan_secret(name), NAMESPACE)
    view = view_of(rke_bootstrap.CONTROLLER, key, [long_bootstrap, role_of_user])
    assert not [*rke_bootstrap._former_rbac(view, long_bootstrap)]


# --- the script ------------------------------------------------------------------------------------------------------


def test_the_script_waits_for_its_token() -> None:
    decision = decide(*machine_objects(*accounts(filled=False)))
    assert decision.wait is not None
    assert decision.wait.reason == "waiting for the token of its service account"
    assert decision.effects == ()


def test_the_script_is_requested_by_names_of_secrets_only() -> None:
    (effect,) = decide(*machine_objects(*accounts())).effects
    assert effect.performer == "bootstrap-data"
    assert effect.arguments["token"] == f"{SCRIPT}-token"
    assert effect.arguments["metadata"]["name"] == SCRIPT
    assert effect.arguments["metadata"]["labels"] == {"cluster.x-k8s.io/cluster-name": "meadow"}
    assert effect.arguments["userdata"] is None


def test_the_bootstrap_is_ready_once_its_script_exists() -> None:
    existing = [*accounts(), rendered(decide(*machine_objects(*accounts())))]
    decision = decide(*machine_objects(*existing))
    (write,) = writes_of(decision)
    assert isinstance(write, Patch)
    assert (write.subresource, write.patch["status"]) == (
        "status",
        {"dataSecretName": SCRIPT, "initialization": {"dataSecretCreated": True}},
    )
    assert decision.effects == ()
    unchanged = decide(*machine_objects(*existing, bootstrap(status=write.patch["status"])))
    assert (unchanged.writes, unchanged.effects, unchanged.wait) == ((), (), None)


@pytest.mark.parametrize(
    "changed_object",
    [
        control_plane(agentEnvVars=[{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]),
        control_plane(dataDirectories={"systemAgent": "/data/agent"}),
        machine(labels={"cattle.io/os": "windows"}),
        machine(infrastructure="infrastructure.cluster.x-k8s.io"),
    ],
)
def test_a_script_is_recreated_when_its_inputs_change(changed_object: Object) -> None:
    existing = [*accounts(), rendered(decide(*machine_objects(*accounts())))]
    assert len(decide(*machine_objects(*existing, changed_object)).effects) == 1


@pytest.mark.parametrize(
    "setting", [{"server_url": "https://other.example.com"}, {"cacerts": "others"}, {"agent_tls_mode": "system-store"}]
)
def test_a_script_is_recreated_when_settings_of_the_manager_change(setting: dict[str, str]) -> None:
    existing = [*accounts(), rendered(decide(*machine_objects(*accounts())))]
    assert len(decide(*machine_objects(*existing), **setting).effects) == 1


def test_a_machine_that_has_joined_gets_no_new_script() -> None:
    status = {"dataSecretName": SCRIPT, "initialization": {"dataSecretCreated": True}}
    existing = [
        *accounts(),
        rendered(decide(*machine_objects(*accounts()))),
        bootstrap(status=status),
        machine(node="node-1"),
    ]
    decision = decide(*machine_objects(*existing), server_url="https://other.example.com")
    assert (decision.writes, decision.effects) == ((), ())


@pytest.mark.parametrize(
    ("changed_object", "settings", "reason"),
    [
        (control_plane(), {"server_url": ""}, "setting server-url: not set; machines need it to register"),
        (
            control_plane(agentEnvVars=[{"name": "A", "value": ""}, {"name": "NO-NAME", "value": "x"}]),
            {},
            'spec.agentEnvVars[1].name: "NO-NAME" is not a valid environment variable name; use letters, digits and _',
        ),
        (
            control_plane(agentEnvVars=[{"name": "A", "value": "x\0y"}]),
            {},
            "spec.agentEnvVars[0].value: control characters are not allowed; remove them from A",
        ),
        (
            control_plane(dataDirectories={"systemAgent": "relative; rm /"}),
            {},
            'spec.dataDirectories.systemAgent: "relative; rm /" must be an absolute path of letters, digits and ._-',
        ),
    ],
)
def test_invalid_inputs_of_the_script_are_reported_by_field(
    changed_object: Object, settings: dict[str, str], reason: str
) -> None:
    decision = decide(*machine_objects(*accounts(), changed_object), **settings)
    assert decision.wait is not None
    assert decision.wait.reason == reason
    assert decision.effects == ()
    assert only_patch(decision)["status"]["conditions"][0]["message"] == reason, "Cluster API copies it to the Machine"


def test_windows_is_only_for_machines_of_node_drivers() -> None:
    windows = machine(labels={"cattle.io/os": "windows"}, infrastructure="infrastructure.cluster.x-k8s.io")
    decision = decide(*machine_objects(*accounts(), windows))
    assert decision.wait is not None
    assert "Windows is not supported" in decision.wait.reason


def test_the_agent_directory_comes_from_its_own_field() -> None:
    spec = {
        "agentEnvVars": [{"name": "CATTLE_AGENT_VAR_DIR", "value": "/elsewhere"}, {"name": "A", "value": "b"}],
        "dataDirectories": {"systemAgent": "/data/agent"},
    }
    (effect,) = decide(*machine_objects(*accounts(), control_plane(**spec))).effects
    assert effect.arguments["variables"] == (("A", "b"), ("CATTLE_AGENT_VAR_DIR", "/data/agent"))


# --- etcd hooks and deletion -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine_object", "hooked"),
    [
        (machine(labels={names.ETCD_ROLE: "true"}), True),
        (machine(labels={names.ETCD_ROLE: "true"}, annotations={names.ETCD_HOOK: names.ETCD_HOOK_OWNER}), False),
        (machine(labels={names.ETCD_ROLE: "true"}, deleting=True), False),
        (machine(labels={names.WORKER_ROLE: "true"}), False),
    ],
)
def test_an_etcd_machine_gets_a_pre_terminate_hook(machine_object: Object, hooked: bool) -> None:
    hooks = [
        write for write in writes_of(decide(*machine_objects(*accounts(), machine_object))) if isinstance(write, Patch)
    ]
    assert [hook.patch for hook in hooks if hook.ref.kind.kind == "Machine"] == (
        [{"metadata": {"annotations": {names.ETCD_HOOK: "rke-bootstrap-controller"}}}] if hooked else []
    )


@pytest.mark.parametrize("machine_object", [machine(phase="Deleting"), machine(phase="Failed"), machine(deleting=True)])
def test_the_script_of_a_deleted_or_failed_machine_is_deleted(machine_object: Object) -> None:
    existing = [*accounts(), rendered(decide(*machine_objects(*accounts())))]
    assert sorted(summaries(decide(*machine_objects(*existing, machine_object)))) == [
        f"Delete Secret {SCRIPT}",
        f"Delete ServiceAccount {SCRIPT}",
    ]


def test_nothing_is_created_for_a_machine_that_is_being_deleted() -> None:
    assert writes_of(decide(*machine_objects(machine(deleting=True)))) == []


def test_no_decision_contains_secret_data() -> None:
    for write in writes_of(decide(*machine_objects())):
        if isinstance(write, Create):
            assert "data" not in write.obj
            assert "stringData" not in write.obj


def test_all_objects_are_in_the_namespace_of_the_machine() -> None:
    for write in writes_of(decide(*machine_objects())):
        obj = getattr(write, "obj", None)
        assert obj is None or obj["metadata"]["namespace"] == NAMESPACE
    assert rke_bootstrap.CONTROLLER.kind.kind == "RKEBootstrap"
