"""ValidatingAdmissionPolicy that limits machines to their own Nodes and Leases, like NodeRestriction."""

from __future__ import annotations

from herder.api.rke.names import MACHINE_UID
from herder.embedded.node import LEASE_NAMESPACE
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.wire import User

NODE_GROUP = "herder:nodes"
POLICY = "herder-nodes"
SERVER_ROLES = tuple(f"node-role.kubernetes.io/{role}" for role in ("control-plane", "etcd", "master"))
NODE_USER = User("system:herder:node", groups=(NODE_GROUP, "system:authenticated"))
POLICIES = GroupVersionResource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies")
POLICY_BINDINGS = GroupVersionResource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings")

MACHINE_PREFIX = f"{NODE_USER.name}:"
"""Prefix of the users of machines with their own token; followed by the Machine's UID."""
_MARK = f"metadata.?labels[?'{MACHINE_UID}'].orValue('')"
_IS_LEASE = "request.resource.resource == 'leases'"
_OWN = f"object.{_MARK} == variables.machine"
# Leases of an earlier version have no label: the first machine that renews one sets it.
_WAS_OWN = f"{_IS_LEASE} || oldObject == null || oldObject.{_MARK} == variables.machine"
_PLACED = f"!({_IS_LEASE}) || request.namespace == '{LEASE_NAMESPACE}'"
_OWN_PROVIDER_ID = f"{_IS_LEASE} || object.?spec.?providerID.orValue('') in ['', 'herder://' + object.metadata.name]"
# Like NodeRestriction: the manager distinguishes servers from workers by these labels.
_NO_SERVER = f"{_IS_LEASE} || !object.metadata.?labels.orValue({{}}).exists(key, key in {list(SERVER_ROLES)})"


def node_policy() -> Object:
    rules = [
        _rule("", ["nodes", "nodes/status"]),
        _rule("coordination.k8s.io", ["leases"]),
    ]
    by_machine = f"request.userInfo.username.startsWith('{MACHINE_PREFIX}')"
    return {
        **_object("ValidatingAdmissionPolicy"),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": rules},
            "matchConditions": [{"name": "by-a-machine", "expression": by_machine}],
            "variables": [
                {"name": "machine", "expression": f"request.userInfo.username.substring({len(MACHINE_PREFIX)})"},
            ],
            "validations": [
                _validation(_WAS_OWN, "it belongs to another machine"),
                _validation(_OWN, f"label {MACHINE_UID} must be the UID of the machine whose token this is"),
                _validation(_PLACED, f"machines write Leases in namespace {LEASE_NAMESPACE} alone"),
                _validation(_OWN_PROVIDER_ID, "spec.providerID must be herder:// and the name of the Node"),
                _validation(_NO_SERVER, "labels of servers, such as node-role.kubernetes.io/control-plane, are theirs"),
            ],
        },
    }


def node_policy_binding() -> Object:
    spec = {"policyName": POLICY, "validationActions": ["Deny"]}
    return {**_object("ValidatingAdmissionPolicyBinding"), "spec": spec}


def _rule(group: str, resources: list[str]) -> Object:
    return {"apiGroups": [group], "apiVersions": ["v1"], "resources": resources, "operations": ["CREATE", "UPDATE"]}


def _validation(expression: str, message: str) -> Object:
    return {"expression": expression, "message": message, "reason": "Forbidden"}


def _object(kind: str) -> Object:
    return {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": POLICY}}
