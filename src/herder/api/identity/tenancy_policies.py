"""The rules of `api/identity/tenancy` as ValidatingAdmissionPolicies, for API servers that do not call us.

A check by the authorizer costs 350,000 units of the 1,000,000 that one expression may cost: no expression has more than
two of them.
"""

from __future__ import annotations

from herder.api.capi.core import CORE_LABEL, DEPLOYMENT, LEASE, LEASE_NAME
from herder.api.capi.inventory import CORE_PROVIDER, PROVIDERS
from herder.api.capi.kinds import CLUSTER, NAMESPACE, SECRET
from herder.api.capi.names import PROVIDER
from herder.api.identity import cel, restore_records
from herder.api.identity.creators import CREATOR_BOUND
from herder.api.identity.projects import PROJECT_ID, SYSTEM_NAMESPACES
from herder.api.identity.roles import OWNED_BY
from herder.api.identity.tenancy import clusters, rules, secrets
from herder.api.machines.credentials import CREATED_BY, CREATOR, CREDENTIAL_TYPE, RIGHTS_FINALIZER
from herder.api.machines.jobs import ROLE, ROLE_BINDING
from herder.api.management.clusters import NAMESPACE_CREATED
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROJECT, PROVISIONING_CLUSTER, REGISTRATION_TOKEN
from herder.api.management.names import LEGACY_NAME, MANAGEMENT_NAME
from herder.api.observe_only import MARKED_KINDS, OBSERVE_ONLY
from herder.api.policies import policy
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE, ETCD_SNAPSHOT
from herder.engine.meta.kinds import Kind

_WRITTEN = ("CREATE", "UPDATE")

_IS_MANAGER = (
    f"authorizer.group('{MANAGEMENT_CLUSTER.group}')"
    f".resource('{MANAGEMENT_CLUSTER.plural}').check('escalate').allowed()"
)

# --- clusters -------------------------------------------------------------------------------------------------------

_NAME = (
    "(object.metadata.?name.orValue('') != '' ? object.metadata.name"
    f" : object.metadata.?generateName.orValue('') + '{clusters.RANDOM_SUFFIX}')"
)


def _may_be_chosen(text: str) -> str:
    reserved = (clusters.PROJECT_NAMESPACE, clusters.GENERATED_CLUSTER_NAME)
    others = " && ".join(f"!{text}.matches({cel.text(each)})" for each in reserved)
    return f"({text}.matches({cel.text(clusters.CLUSTER_NAME)}) && {others})"


def _is_system(text: str) -> str:
    prefixes = " || ".join(f"{text}.startsWith('{each}')" for each in clusters.SYSTEM_PREFIXES)
    return f"({text} in {cel.strings(tuple(sorted(SYSTEM_NAMESPACES)))} || {prefixes})"


_INTERNAL = "?spec.?internal.orValue(false) == true"
_WORKSPACE = "?spec.?fleetWorkspaceName"
_MAY_PROVISION = (
    f"authorizer.group('{PROVISIONING_CLUSTER.group}').resource('{PROVISIONING_CLUSTER.plural}')"
    f".namespace({cel.new(_WORKSPACE)}).check('create').allowed()"
)
_ASKED = cel.annotation(MANAGEMENT_NAME)

# --- projects -------------------------------------------------------------------------------------------------------

_IS_PROJECT = (
    "object.metadata.name.matches('^p-[a-z0-9]+$') && object.?spec.?clusterName.orValue('') == request.namespace"
    " && size(request.namespace) + size(object.metadata.name) < 63"
)
_JOINED = cel.annotation(PROJECT_ID)
_MAY_JOIN = (
    f"{cel.new(_JOINED)}.matches('^[^:]+:[^:]+$') && authorizer.group('{PROJECT.group}').resource('{PROJECT.plural}')"
    f".namespace({cel.new(_JOINED)}.split(':')[0]).name({cel.new(_JOINED)}.split(':')[1])"
    ".check('manage-namespaces').allowed()"
)

# --- Secrets --------------------------------------------------------------------------------------------------------

_IS_TOKEN = f"object.?type.orValue('') == '{secrets.ACCOUNT_TOKEN_TYPE}'"
_TOKEN = f"?data[?'{secrets.TOKEN_KEY}']"
_ACCOUNT = cel.annotation(secrets.TOKEN_OF)
_IS_TOKEN_CONTROLLER = (
    "request.userInfo.username == 'system:kube-controller-manager'"
    " || request.userInfo.username.startsWith('system:serviceaccount:kube-system:')"
)
_GIVEN_TOKEN = (
    f"object.{_TOKEN}.hasValue() && size(object.{_TOKEN}.value()) > 0"
    f" && ({cel.CREATED} || object.{_TOKEN} != oldObject.{_TOKEN})"
)
_MAY_USE_ACCOUNT = (
    "(authorizer.group('').resource('serviceaccounts').subresource('token').namespace(request.namespace)"
    f".name({cel.new(_ACCOUNT)}).check('create').allowed()"
    " || authorizer.group('').resource('pods').namespace(request.namespace).check('create').allowed())"
)


def _labelled(name: str) -> str:
    """Whether a write sets a label, also to an empty value: the manager finds objects by labels that exist."""
    label = f"metadata.?labels[?'{name}']"
    return f"(object.{label}.hasValue() && ({cel.CREATED} || object.{label} != oldObject.{label}))"


_ISSUED_LABEL = " || ".join(_labelled(each) for each in secrets.ISSUED_LABELS)
_ISSUED = f"{_ISSUED_LABEL} || ({cel.CREATED} && object.?type.orValue('') in {cel.strings(secrets.ISSUED_TYPES)})"


def _is_controlled(of: str) -> str:
    return f"{of}.metadata.?ownerReferences.orValue([]).exists(each, each.?controller.orValue(false))"


_IS_OWN = (
    f"(object.?type.orValue('Opaque') in {cel.strings(secrets.OWN_TYPES)} && !{_is_controlled('object')}"
    f" && !{_NAME}.matches({cel.text(secrets.GENERATED_NAME)}))"
)
_NOT_OWN = f"({cel.CREATED} ? !{_IS_OWN} : ({_is_controlled('object')} && !{_is_controlled('oldObject')}))"
_ALL_SECRETS = "authorizer.group('').resource('secrets').namespace(request.namespace)"
_MAY_CHANGE_ALL = f"({_ALL_SECRETS}.check('update').allowed() || {_ALL_SECRETS}.check('patch').allowed())"
_IS_SYSTEM = "request.userInfo.username.startsWith('system:')"
_IS_COMPONENT = (
    f"({_IS_SYSTEM} && (!request.userInfo.username.startsWith('system:serviceaccount:')"
    " || request.userInfo.username.startsWith('system:serviceaccount:kube-system:')))"
)


def _has_rights(of: str) -> str:
    return f"'{RIGHTS_FINALIZER}' in {of}.metadata.?finalizers.orValue([])"


# --- deletion -------------------------------------------------------------------------------------------------------


def _holds_orphans(of: str) -> str:
    return f"'{rules.ORPHAN_FINALIZER}' in {of}.metadata.?finalizers.orValue([])"


_DELETED = "request.operation == 'DELETE'"
_ORPHANING = (
    f"({_DELETED}"
    f" ? (request.options.?propagationPolicy.orValue('') == '{rules.ORPHAN_POLICY}'"
    " || request.options.?orphanDependents.orValue(false) == true)"
    f" : ({_holds_orphans('object')} && !({cel.CREATED} ? false : {_holds_orphans('oldObject')})))"
    f" && !{_IS_COMPONENT}"
)
_TYPE = f"({_DELETED} ? oldObject.?type.orValue('') : object.?type.orValue(''))"


def _released(kind: Kind, grants_rights: str) -> str:
    """Whether a write removes the manager's finalizer from a cluster being deleted, or deletes a cluster without it."""

    def is_held(of: str) -> str:
        return f"('{rules.HELD_BY[kind]}' in {of}.metadata.?finalizers.orValue([]))"

    going = "has(oldObject.metadata.deletionTimestamp)"
    return (
        f"({_DELETED} ? (!{going} && {grants_rights} && !{is_held('oldObject')} && !{_IS_COMPONENT})"
        f" : ({going} && {is_held('oldObject')} && !{is_held('object')}))"
    )


_HAS_MANAGEMENT = "oldObject.?status.?clusterName.orValue('') != ''"
_HAS_MEMBERS = (
    f"(oldObject.{cel.annotation(CREATOR_BOUND)}.orValue('') == 'true' || oldObject.?status.?conditions.orValue([])"
    f".exists(each, each.type == '{NAMESPACE_CREATED}' && each.status == 'True'))"
)


def _owners(of: str) -> str:
    return f"{of}.metadata.?ownerReferences.orValue([])"


_NEW_OWNER = (
    f"{_owners('object')}.exists(each, {cel.CREATED} || !{_owners('oldObject')}.exists(known, known.uid == each.uid))"
)

# --- Roles ----------------------------------------------------------------------------------------------------------

_OF_MACHINE = " || ".join(f"each.apiVersion.startsWith('{group}')" for group in rules.MACHINE_OWNERS)
_IS_OF_MACHINE = f"{_owners('oldObject')}.exists(each, each.?controller.orValue(false) && ({_OF_MACHINE}))"
_FILLS_ROLE = (
    f"({_NAME}.matches({cel.text(rules.GRANTED_ROLE)}) || (!({cel.CREATED}) && {_IS_OF_MACHINE}))"
    f" && ({cel.CREATED} || object.?rules.orValue([]) != oldObject.?rules.orValue([]))"
)
_OUTLASTS = (
    "(object.metadata.?finalizers.orValue([]) != oldObject.metadata.?finalizers.orValue([])"
    f" || {_owners('object')} != {_owners('oldObject')}) && !{_IS_COMPONENT}"
)
_KEEPS_ROLE = f"({_NAME}.matches({cel.text(rules.GRANTED_ROLE)}) || {_IS_OF_MACHINE}) && {_OUTLASTS}"
_KEEPS_BINDING = (
    f"((oldObject.roleRef.kind == '{ROLE.kind}' && oldObject.roleRef.name.matches({cel.text(rules.GRANTED_ROLE)}))"
    f" || '{OWNED_BY}' in oldObject.metadata.?labels.orValue({{}}) || {_IS_OF_MACHINE}) && {_OUTLASTS}"
)

# --- Cluster API cores ----------------------------------------------------------------------------------------------

_MAY_RUN_CORE = f"authorizer.group('{CLUSTER.group}').resource('{CLUSTER.plural}').check('update').allowed()"


def _is_core(of: str) -> str:
    return f"{of}.metadata.?labels[?'{PROVIDER}'].orValue('') == '{CORE_LABEL}'"


_BECOMES_CORE = (
    f"{_is_core('object')} && ({cel.CREATED} || !({_is_core('oldObject')})"
    " || object.spec.?replicas.orValue(1) != oldObject.spec.?replicas.orValue(1))"
)

# --- restores -------------------------------------------------------------------------------------------------------


_IS_GENERATED = f"oldObject.{cel.annotation(restore_records.SPEC_COPIES[0])}.hasValue()"
_OTHER_MARKS = " || ".join(cel.marked(cel.annotation(mark)) for mark in names.COPIED_TO_CONTROL_PLANE)
_OTHER_RECORDS = " || ".join(cel.marked(f"?status.?{name}") for name in restore_records.RECORDS)
_OTHER_SNAPSHOT = " || ".join(
    (
        cel.CREATED,
        _NEW_OWNER,
        *(f"object.?{field} != oldObject.?{field}" for field in restore_records.SNAPSHOT_FIELDS),
        *(cel.marked(cel.annotation(mark)) for mark in restore_records.SNAPSHOT_MARKS),
    )
)

_CREATOR = cel.annotation(CREATOR)
_CREATED_BY = cel.annotation(CREATED_BY)
_READER = (
    f"(oldObject.{_CREATED_BY}.orValue('') != '' ? oldObject.{_CREATED_BY}.value() : oldObject.{_CREATOR}.orValue(''))"
)
"""Who created a Secret without the right to change others. An empty annotation names nobody."""
_OTHER_CREATOR = f"{cel.changed(_CREATOR)} && !({cel.CREATED} && {cel.new(_CREATOR)} == request.userInfo.username)"

_PROJECT_NAMESPACES = policy(
    "herder-project-namespaces",
    (NAMESPACE,),
    _WRITTEN,
    f"{cel.changed(_JOINED)} && !({_MAY_JOIN})",
    _IS_MANAGER,
    clusters.BAD_MOVE,
    subresources=True,
)

IN_CLUSTERS = (_PROJECT_NAMESPACES,)
"""Policies for managed clusters; the authorizer checks the user's permissions in that cluster."""

POLICIES = (
    policy(
        "herder-cluster-names",
        (MANAGEMENT_CLUSTER,),
        ("CREATE",),
        f"!{_may_be_chosen(_NAME)}",
        _IS_MANAGER,
        clusters.BAD_CLUSTER_NAME,
    ),
    policy(
        "herder-internal-cluster",
        (MANAGEMENT_CLUSTER,),
        _WRITTEN,
        f"object.{_INTERNAL} && !({cel.CREATED} ? false : oldObject.{_INTERNAL})",
        _IS_MANAGER,
        clusters.BAD_INTERNAL,
    ),
    policy(
        "herder-workspaces",
        (MANAGEMENT_CLUSTER,),
        _WRITTEN,
        f"{cel.changed(_WORKSPACE)} && ({_is_system(cel.new(_WORKSPACE))} || !{_MAY_PROVISION})",
        _IS_MANAGER,
        clusters.BAD_WORKSPACE,
    ),
    policy(
        "herder-kept-workspaces",
        (MANAGEMENT_CLUSTER,),
        _WRITTEN,
        f"{cel.before(_WORKSPACE)} != '' && {cel.new(_WORKSPACE)} != {cel.before(_WORKSPACE)}",
        _IS_MANAGER,
        clusters.BAD_MOVED,
    ),
    policy(
        "herder-requested-names",
        (PROVISIONING_CLUSTER,),
        _WRITTEN,
        f"{cel.changed(_ASKED)} && !{_may_be_chosen(cel.new(_ASKED))}",
        _IS_MANAGER,
        f"annotation {MANAGEMENT_NAME}: {clusters.BAD_CLUSTER_NAME}",
    ),
    policy(
        "herder-cluster-places",
        (PROVISIONING_CLUSTER,),
        ("CREATE",),
        _is_system("request.namespace"),
        _IS_MANAGER,
        clusters.BAD_PLACE,
    ),
    policy(
        "herder-cluster-ids",
        (PROVISIONING_CLUSTER,),
        ("UPDATE",),
        "object.?status.?clusterName.orValue('') != oldObject.?status.?clusterName.orValue('')",
        _IS_MANAGER,
        clusters.BAD_ID,
        subresources=True,
    ),
    policy(
        "herder-pair-names",
        (PROVISIONING_CLUSTER,),
        ("CREATE",),
        f"{_NAME}.matches({cel.text(LEGACY_NAME)})",
        _IS_MANAGER,
        clusters.BAD_PAIR_NAME,
    ),
    policy("herder-projects", (PROJECT,), ("CREATE",), f"!({_IS_PROJECT})", _IS_MANAGER, clusters.BAD_PROJECT),
    _PROJECT_NAMESPACES,
    policy(
        "herder-account-tokens",
        (SECRET,),
        _WRITTEN,
        f"{_IS_TOKEN} && {_GIVEN_TOKEN} && !({_IS_TOKEN_CONTROLLER})",
        _IS_MANAGER,
        secrets.BAD_TOKEN,
    ),
    policy(
        "herder-token-accounts",
        (SECRET,),
        _WRITTEN,
        f"{_IS_TOKEN} && ({cel.CREATED} || {cel.new(_ACCOUNT)} != {cel.before(_ACCOUNT)}) && !{_MAY_USE_ACCOUNT}",
        f"{_ALL_SECRETS}.check('get').allowed() || {_IS_MANAGER}",
        secrets.BAD_ACCOUNT,
    ),
    policy(
        "herder-registration-tokens",
        (REGISTRATION_TOKEN,),
        _WRITTEN,
        cel.changed(f"?status.?{secrets.TOKEN_KEY}"),
        _IS_MANAGER,
        secrets.BAD_REGISTRATION,
    ),
    policy("herder-issued-secrets", (SECRET,), _WRITTEN, _ISSUED, _IS_MANAGER, secrets.BAD_ISSUED),
    policy(
        "herder-own-secrets",
        (SECRET,),
        _WRITTEN,
        f"{_NOT_OWN} && !{_IS_SYSTEM} && !{_MAY_CHANGE_ALL}",
        _IS_MANAGER,
        secrets.BAD_OWN,
    ),
    policy(
        "herder-orphans-of-clusters",
        (MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER),
        (*_WRITTEN, "DELETE"),
        _ORPHANING,
        _IS_MANAGER,
        rules.BAD_ORPHANS,
    ),
    policy(
        "herder-orphans-of-secrets",
        (SECRET,),
        (*_WRITTEN, "DELETE"),
        f"{_ORPHANING} && ({_TYPE} == '{CREDENTIAL_TYPE}' || !{_MAY_CHANGE_ALL})",
        _IS_MANAGER,
        rules.BAD_ORPHANS,
    ),
    policy(
        "herder-held-clusters",
        (PROVISIONING_CLUSTER,),
        ("UPDATE", "DELETE"),
        _released(PROVISIONING_CLUSTER, _HAS_MANAGEMENT),
        _IS_MANAGER,
        rules.BAD_RELEASE,
    ),
    policy(
        "herder-held-management-clusters",
        (MANAGEMENT_CLUSTER,),
        ("UPDATE", "DELETE"),
        _released(MANAGEMENT_CLUSTER, _HAS_MEMBERS),
        _IS_MANAGER,
        rules.BAD_RELEASE,
    ),
    policy(
        "herder-owners-of-clusters",
        rules.OWNED_CLUSTERS,
        _WRITTEN,
        f"{_NEW_OWNER} && !{_IS_SYSTEM}",
        _IS_MANAGER,
        rules.BAD_OWNERS,
    ),
    policy(
        "herder-observe-only-clusters",
        MARKED_KINDS,
        _WRITTEN,
        cel.marked(cel.annotation(OBSERVE_ONLY)),
        _IS_MANAGER,
        rules.BAD_OBSERVE_ONLY,
    ),
    policy(
        "herder-spec-copies",
        (CONTROL_PLANE,),
        _WRITTEN,
        " || ".join(cel.marked(cel.annotation(mark)) for mark in restore_records.SPEC_COPIES),
        _IS_MANAGER,
        restore_records.BAD_COPY,
        subresources=True,
    ),
    policy(
        "herder-generated-specs",
        (CONTROL_PLANE,),
        ("UPDATE",),
        f"{_IS_GENERATED} && (object.?spec != oldObject.?spec || {_OTHER_MARKS})",
        _IS_MANAGER,
        restore_records.BAD_SPEC,
    ),
    policy(
        "herder-operation-records",
        (CONTROL_PLANE,),
        _WRITTEN,
        _OTHER_RECORDS,
        _IS_MANAGER,
        restore_records.BAD_RECORD,
        subresources=True,
    ),
    policy("herder-snapshots", (ETCD_SNAPSHOT,), _WRITTEN, _OTHER_SNAPSHOT, _IS_MANAGER, restore_records.BAD_SNAPSHOT),
    policy("herder-granted-roles", (ROLE,), _WRITTEN, _FILLS_ROLE, _IS_MANAGER, rules.BAD_ROLE),
    policy("herder-kept-roles", (ROLE,), ("UPDATE",), _KEEPS_ROLE, _IS_MANAGER, rules.BAD_KEPT_ROLE),
    policy(
        "herder-marked-bindings", (ROLE_BINDING,), _WRITTEN, _labelled(OWNED_BY), _IS_MANAGER, rules.BAD_MARKED_BINDING
    ),
    policy("herder-kept-bindings", (ROLE_BINDING,), ("UPDATE",), _KEEPS_BINDING, _IS_MANAGER, rules.BAD_KEPT_ROLE),
    policy(
        "herder-core-leases",
        (LEASE,),
        _WRITTEN,
        f"{_NAME} == '{LEASE_NAME}'",
        f"{_MAY_RUN_CORE} || {_IS_MANAGER}",
        rules.BAD_CORE,
    ),
    policy(
        "herder-core-providers",
        (PROVIDERS,),
        _WRITTEN,
        f"object.?type.orValue('') == '{CORE_PROVIDER}'",
        f"{_MAY_RUN_CORE} || {_IS_MANAGER}",
        rules.BAD_CORE,
    ),
    policy(
        "herder-core-deployments",
        (DEPLOYMENT,),
        _WRITTEN,
        _BECOMES_CORE,
        f"{_MAY_RUN_CORE} || {_IS_MANAGER}",
        rules.BAD_CORE,
    ),
    policy(
        "herder-creator-rights",
        (SECRET,),
        ("UPDATE",),
        f"{_has_rights('oldObject')} && !({_has_rights('object')})",
        _IS_MANAGER,
        secrets.BAD_FINALIZER,
    ),
    policy(
        "herder-credential-creators",
        (SECRET,),
        _WRITTEN,
        " || ".join(cel.marked(cel.annotation(mark)) for mark in secrets.MANAGED_MARKS),
        _IS_MANAGER,
        secrets.BAD_MARK,
    ),
    policy(
        "herder-credential-contents",
        (SECRET,),
        ("UPDATE",),
        f"oldObject.?type.orValue('Opaque') in {cel.strings(secrets.OWN_TYPES)} && {_READER} != '' && "
        f"{_READER} != request.userInfo.username && object.?data.orValue({{}}) != oldObject.?data.orValue({{}})",
        "false",
        secrets.BAD_OVERWRITE.format(f"{CREATED_BY} or {CREATOR}"),
    ),
    policy(
        "herder-named-creators",
        (SECRET,),
        ("CREATE",),
        f"{cel.new(_CREATOR)} == '' && !{_IS_SYSTEM} && !{_MAY_CHANGE_ALL}",
        _IS_MANAGER,
        secrets.BAD_UNNAMED,
    ),
    policy("herder-secret-creators", (SECRET,), _WRITTEN, _OTHER_CREATOR, _IS_MANAGER, secrets.BAD_CREATOR),
)
