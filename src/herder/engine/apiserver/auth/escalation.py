"""RBAC escalation check: users cannot grant permissions that they do not have.

Writing a role requires every permission in it, writing a binding every permission of its role, unless the user is
allowed to `escalate` or `bind`. Runs as a validating plugin, after all mutations.
"""

from __future__ import annotations

from collections.abc import Sequence

from herder.engine.apiserver.admission.chain import CREATE, UPDATE, Attributes, metadata
from herder.engine.apiserver.auth.access import AccessAttributes
from herder.engine.apiserver.auth.policy import GROUP, quoted
from herder.engine.apiserver.auth.rbac import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLES,
    RbacAuthorizer,
)
from herder.engine.apiserver.auth.users import SUPERUSERS
from herder.engine.meta.errors import forbidden, not_found
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.meta.rules import Atom, Rule, compact_rules, missing_atoms
from herder.engine.wire import User

_EVERYTHING = (
    Rule.of({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}),
    Rule.of({"verbs": ["*"], "nonResourceURLs": ["*"]}),
)
# Fields that the garbage collector changes on any object; they grant nothing.
_COLLECTOR_FIELDS = frozenset({"ownerReferences", "finalizers", "managedFields", "selfLink"})


class EscalationCheck:
    """The admission plugin that checks writes of roles and bindings."""

    name = "RbacEscalation"
    operations = frozenset({CREATE, UPDATE})
    resources: frozenset[GroupResource] | None = frozenset({ROLES, CLUSTER_ROLES, ROLE_BINDINGS, CLUSTER_ROLE_BINDINGS})
    subresources: frozenset[str] | None = frozenset({""})

    def __init__(self, authorizer: RbacAuthorizer) -> None:
        self._authorizer = authorizer

    async def validate(self, attributes: Attributes) -> None:
        if SUPERUSERS in attributes.user.groups:
            return
        if attributes.operation == UPDATE and _only_collector_fields(attributes.object, attributes.old or {}):
            return
        if attributes.resource.group_resource in (ROLES, CLUSTER_ROLES):
            self._check_role(attributes)
        else:
            self._check_binding(attributes)

    def _check_role(self, attributes: Attributes) -> None:
        resource, user = attributes.resource.group_resource, attributes.user
        name = "" if attributes.operation == CREATE else attributes.name  # the path of a create has no name
        escalate = AccessAttributes(
            "escalate", GROUP, "*", resource.resource, namespace=attributes.namespace, name=name
        )
        if self._authorizer.authorize(user, escalate).allowed:
            return
        role = attributes.object
        rules = [Rule.of(rule) for rule in role.get("rules") or ()]
        problem = self.escalation_error(user, attributes.namespace, rules)
        if problem:
            raise forbidden(resource, _object_name(attributes), problem)
        if (_aggregates(role) or _aggregates(attributes.old)) and self.escalation_error(user, "", _EVERYTHING):
            why = "must have cluster-admin privileges to use the aggregationRule"
            raise forbidden(resource, _object_name(attributes), why)

    def _check_binding(self, attributes: Attributes) -> None:
        role = attributes.object.get("roleRef") or {}
        kind, name = role.get("kind", ""), role.get("name", "")
        plural = {"Role": "roles", "ClusterRole": "clusterroles"}.get(kind)
        if plural is None:
            return  # validation rejects it
        bind = AccessAttributes(
            "bind", role.get("apiGroup", ""), "*", plural, namespace=attributes.namespace, name=name
        )
        if self._authorizer.authorize(attributes.user, bind).allowed:
            return
        rules = self._authorizer.policy.rules_of(kind, name, attributes.namespace)
        if rules is None:
            # kube-apiserver's message names the resource of the binding, too.
            raise not_found(attributes.resource.group_resource, name)
        problem = self.escalation_error(attributes.user, attributes.namespace, rules)
        if problem:
            raise forbidden(attributes.resource.group_resource, _object_name(attributes), problem)

    def escalation_error(self, user: User, namespace: str, rules: Sequence[Rule]) -> str:
        """Return an error if `user` does not have all of `rules` in `namespace`; empty otherwise."""
        grants = self._authorizer.policy.grants(user, namespace)
        missing = missing_atoms([Rule.of(rule) for rule in grants.rules], rules)
        if not missing:
            return ""
        groups = "[" + " ".join(quoted(group) for group in user.groups) + "]"
        message = (
            f"user {quoted(user.name)} (groups={groups}) is attempting to grant RBAC permissions not currently held:\n"
            + "\n".join(sorted({_format_rule(rule) for rule in compact_rules(missing)}))
        )
        return f"{message}; resolution errors: [{grants.error_message()}]" if grants.errors else message


_RULE_FIELDS = (
    ("APIGroups", "apiGroups"),
    ("Resources", "resources"),
    ("NonResourceURLs", "nonResourceURLs"),
    ("ResourceNames", "resourceNames"),
    ("Verbs", "verbs"),
)


def _format_rule(atom: Atom) -> str:
    parts = [
        f"{label}:[" + " ".join(quoted(value) for value in atom[key]) + "]"
        for label, key in _RULE_FIELDS
        if atom.get(key)
    ]
    return "{" + ", ".join(parts) + "}"


def _object_name(attributes: Attributes) -> str:
    return attributes.name or metadata(attributes.obj).get("name") or ""


def _aggregates(role: Object | None) -> bool:
    return bool(((role or {}).get("aggregationRule") or {}).get("clusterRoleSelectors"))


def _only_collector_fields(new: Object, old: Object) -> bool:
    return _without_collector_fields(new) == _without_collector_fields(old)


def _without_collector_fields(obj: Object) -> Object:
    kept = {key: value for key, value in (obj.get("metadata") or {}).items() if key not in _COLLECTOR_FIELDS}
    return obj | {"metadata": kept}
