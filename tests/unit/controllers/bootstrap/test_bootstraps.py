"""What is made for a machine before it runs, and when."""

from __future__ import annotations

import pytest

from herder.api.capi.kinds import SECRET
from herder.api.machines.jobs import ROLE, ROLE_BINDING
from herder.api.rke import names
from herder.controllers.bootstrap import objects, rke_bootstrap
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Create, Decision, Patch
from tests.unit.controllers.bootstrap.stage import (
    NAME,
    NAMESPACE,
    accounts,
    bootstrap,
    cluster,
    control_plane,
    decide,
    machine,
    made,
    scene,
    told,
    writes,
)

PLAN, SCRIPT = f"{NAME}-machine-plan", f"{NAME}-machine-bootstrap"


def rendered(decision: Decision) -> Object:
    """The bootstrap Secret as the effect leaves it, by what it was asked for."""
    (effect,) = decision.effects
    return made(SECRET, SCRIPT, meta=dict(effect.arguments["metadata"]))


# --- before anything is made -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (bootstrap(owned=False), "waiting for the Machine controller to set the owner reference"),
        (cluster(paused=True), "reconciliation is paused"),
        (bootstrap(annotations={"cluster.x-k8s.io/paused": ""}), "reconciliation is paused"),
        (cluster(provisioned=False), "the cluster's infrastructure is not provisioned"),
    ],
)
def test_nothing_is_made_before_its_cluster_is_there(changed: Object, reason: str) -> None:
    decision = decide(*scene(changed))
    assert decision.wait is not None
    assert decision.wait.reason == reason
    assert decision.writes == ()
    assert decision.effects == ()


# --- the plan --------------------------------------------------------------------------------------------------------


def test_a_machine_gets_an_account_that_may_use_its_plan_and_nothing_else() -> None:
    decision = decide(*scene())
    assert sorted(told(decision)) == sorted(
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


def test_a_plan_secret_says_whose_it_is() -> None:
    asked = {"rke.cattle.io/address": "10.0.0.7"}
    secret = objects.plan_secret(bootstrap(annotations=asked), machine(), cluster())
    assert secret["type"] == "rke.cattle.io/machine-plan"
    assert secret["metadata"]["annotations"] == asked
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


@pytest.mark.parametrize(("role", "tainted"), [("worker", True), ("etcd", True), ("control-plane", False)])
def test_nodes_that_are_not_of_the_control_plane_keep_pods_off_until_they_are_known(role: str, tainted: bool) -> None:
    whole = bootstrap()
    whole["metadata"]["labels"] = {f"rke.cattle.io/{role}-role": "true"}
    told = objects.new_plan_secret(whole, machine(), cluster())["metadata"]["annotations"]
    taint = '[{"key":"node.cluster.x-k8s.io/uninitialized","effect":"NoSchedule"}]'
    assert told == ({"bootstrap.herder.io/register-with-taints": taint} if tainted else {})


def test_what_changes_on_the_bootstrap_reaches_the_plan_secret_and_what_others_wrote_there_stays() -> None:
    there = objects.plan_secret(bootstrap(), machine(), cluster())
    there["metadata"]["annotations"] = {"rke.cattle.io/join-url": "https://10.0.0.1:9345"}
    found = [each for each in accounts() if each["metadata"]["name"] != PLAN or each["kind"] != "Secret"]
    decision = decide(*scene(bootstrap(annotations={"rke.cattle.io/address": "10.0.0.7"}), *found, there))
    (write,) = [write for write in writes(decision) if isinstance(write, Patch)]
    assert write.patch == {"metadata": {"annotations": {"rke.cattle.io/address": "10.0.0.7"}}}


def test_what_the_bootstrap_does_not_say_of_the_node_any_more_goes_from_the_plan_secret() -> None:
    there = objects.plan_secret(bootstrap(), machine(), cluster())
    own = {names.LABELS: '{"a":"b"}', names.TAINTS: "[]", names.ADDRESS: "10.0.0.7", names.INTERNAL_ADDRESS: "10.0.0.8"}
    there["metadata"]["annotations"] = {**own, names.JOIN_URL: "https://10.0.0.1:9345", "example.com/hook": "done"}
    found = [each for each in accounts() if each["metadata"]["name"] != PLAN or each["kind"] != "Secret"]
    decision = decide(*scene(bootstrap(annotations={names.ADDRESS: "10.0.0.7"}), *found, there))
    (write,) = [write for write in writes(decision) if isinstance(write, Patch)]
    gone = dict.fromkeys((names.LABELS, names.TAINTS, names.INTERNAL_ADDRESS))
    assert write.patch == {"metadata": {"annotations": gone}}


def test_a_role_that_somebody_widened_is_made_narrow_again() -> None:
    role = objects.plan_role(bootstrap())
    wide = {**role, "rules": [{**role["rules"][0], "resourceNames": []}]}
    found = [wide if each["kind"] == "Role" else each for each in accounts()]
    assert list(told(decide(*scene(*found)))) == [f"Apply Role {PLAN}"]


@pytest.mark.parametrize("kind", [ROLE, ROLE_BINDING])
def test_a_role_of_a_user_is_not_filled(kind: Kind) -> None:
    """Whoever bound it while it was empty would get the plan."""
    decision = decide(*scene(made(kind, PLAN)))
    assert decision.wait is not None
    assert f"{kind.kind} {NAMESPACE}/{PLAN} has another owner" in decision.wait.reason
    assert decision.writes == ()


# --- the script ------------------------------------------------------------------------------------------------------


def test_the_script_waits_for_the_token_that_is_in_it() -> None:
    decision = decide(*scene(*accounts(filled=False)))
    assert decision.wait is not None
    assert decision.wait.reason == "waiting for the token of its service account"
    assert decision.effects == ()


def test_the_script_is_asked_for_by_the_names_of_secrets_alone() -> None:
    (effect,) = decide(*scene(*accounts())).effects
    assert effect.performer == "bootstrap-data"
    assert effect.arguments["token"] == f"{SCRIPT}-token"
    assert effect.arguments["metadata"]["name"] == SCRIPT
    assert effect.arguments["metadata"]["labels"] == {"cluster.x-k8s.io/cluster-name": "meadow"}
    assert effect.arguments["userdata"] is None


def test_once_the_script_is_there_the_machine_may_be_made() -> None:
    there = [*accounts(), rendered(decide(*scene(*accounts())))]
    decision = decide(*scene(*there))
    (write,) = writes(decision)
    assert isinstance(write, Patch)
    assert (write.subresource, write.patch["status"]) == (
        "status",
        {"dataSecretName": SCRIPT, "initialization": {"dataSecretCreated": True}},
    )
    assert decision.effects == ()
    settled = decide(*scene(*there, bootstrap(status=write.patch["status"])))
    assert (settled.writes, settled.effects, settled.wait) == ((), (), None)


@pytest.mark.parametrize(
    "changed",
    [
        control_plane(agentEnvVars=[{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]),
        control_plane(dataDirectories={"systemAgent": "/data/agent"}),
        machine(labels={"cattle.io/os": "windows"}),
        machine(infrastructure="infrastructure.cluster.x-k8s.io"),
    ],
)
def test_a_script_that_is_not_the_right_one_any_more_is_made_anew(changed: Object) -> None:
    there = [*accounts(), rendered(decide(*scene(*accounts())))]
    assert len(decide(*scene(*there, changed)).effects) == 1


@pytest.mark.parametrize(
    "setting", [{"server_url": "https://other.example.com"}, {"cacerts": "others"}, {"agent_tls_mode": "system-store"}]
)
def test_what_the_manager_tells_of_itself_is_in_the_script_too(setting: dict[str, str]) -> None:
    there = [*accounts(), rendered(decide(*scene(*accounts())))]
    assert len(decide(*scene(*there), **setting).effects) == 1


def test_a_machine_that_has_run_its_script_gets_no_other() -> None:
    status = {"dataSecretName": SCRIPT, "initialization": {"dataSecretCreated": True}}
    there = [*accounts(), rendered(decide(*scene(*accounts()))), bootstrap(status=status), machine(node="node-1")]
    decision = decide(*scene(*there), server_url="https://other.example.com")
    assert (decision.writes, decision.effects) == ((), ())


@pytest.mark.parametrize(
    ("changed", "settings", "reason"),
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
def test_what_no_script_can_be_made_of_is_told_by_its_field(
    changed: Object, settings: dict[str, str], reason: str
) -> None:
    decision = decide(*scene(*accounts(), changed), **settings)
    assert decision.wait is not None
    assert decision.wait.reason == reason
    assert decision.effects == ()


def test_windows_is_for_machines_of_our_own_drivers() -> None:
    odd = machine(labels={"cattle.io/os": "windows"}, infrastructure="infrastructure.cluster.x-k8s.io")
    decision = decide(*scene(*accounts(), odd))
    assert decision.wait is not None
    assert "Windows is not supported" in decision.wait.reason


def test_the_agents_directory_has_a_field_of_its_own() -> None:
    spec = {
        "agentEnvVars": [{"name": "CATTLE_AGENT_VAR_DIR", "value": "/elsewhere"}, {"name": "A", "value": "b"}],
        "dataDirectories": {"systemAgent": "/data/agent"},
    }
    (effect,) = decide(*scene(*accounts(), control_plane(**spec))).effects
    assert effect.arguments["variables"] == (("A", "b"), ("CATTLE_AGENT_VAR_DIR", "/data/agent"))


# --- etcd, and the end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("whose", "held"),
    [
        (machine(labels={names.ETCD_ROLE: "true"}), True),
        (machine(labels={names.ETCD_ROLE: "true"}, annotations={names.ETCD_HOOK: names.ETCD_HOOK_OWNER}), False),
        (machine(labels={names.ETCD_ROLE: "true"}, going=True), False),
        (machine(labels={names.WORKER_ROLE: "true"}), False),
    ],
)
def test_a_machine_with_etcd_is_held_until_its_member_is_out(whose: Object, held: bool) -> None:
    hooks = [write for write in writes(decide(*scene(*accounts(), whose))) if isinstance(write, Patch)]
    assert [hook.patch for hook in hooks if hook.ref.kind.kind == "Machine"] == (
        [{"metadata": {"annotations": {names.ETCD_HOOK: "rke-bootstrap-controller"}}}] if held else []
    )


@pytest.mark.parametrize("whose", [machine(phase="Deleting"), machine(phase="Failed"), machine(going=True)])
def test_a_machine_that_goes_has_no_script_any_more(whose: Object) -> None:
    there = [*accounts(), rendered(decide(*scene(*accounts())))]
    assert sorted(told(decide(*scene(*there, whose)))) == [f"Delete Secret {SCRIPT}", f"Delete ServiceAccount {SCRIPT}"]


def test_nothing_is_made_for_a_machine_that_is_deleted() -> None:
    assert writes(decide(*scene(machine(going=True)))) == []


def test_no_decision_writes_what_is_in_a_secret() -> None:
    for write in writes(decide(*scene())):
        if isinstance(write, Create):
            assert "data" not in write.obj
            assert "stringData" not in write.obj


def test_its_namespace_is_the_machines() -> None:
    for write in writes(decide(*scene())):
        obj = getattr(write, "obj", None)
        assert obj is None or obj["metadata"]["namespace"] == NAMESPACE
    assert rke_bootstrap.CONTROLLER.kind.kind == "RKEBootstrap"
