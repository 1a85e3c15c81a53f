"""The rules of `api/identity/tenancy.py` as ValidatingAdmissionPolicies, for API servers that do not call us.

A check by the authorizer costs 350,000 units of the 1,000,000 that one expression may cost: no expression has more than
two of them.
"""

from __future__ import annotations

from herder.api.capi.core import CORE_LABEL, DEPLOYMENT, LEASE, LEASE_NAME
from herder.api.capi.inventory import CORE_PROVIDER, PROVIDERS
from herder.api.capi.kinds import CLUSTER, NAMESPACE, SECRET
from herder.api.capi.names import PROVIDER
from herder.api.identity import restore_records, tenancy
from herder.api.identity.creators import CREATOR_BOUND
from herder.api.identity.projects import PROJECT_ID, SYSTEM_NAMESPACES
from herder.api.machines.credentials import CREATED_BY, CREATOR, CREDENTIAL_TYPE, RIGHTS_FINALIZER
from herder.api.machines.jobs import ROLE
from herder.api.management.clusters import NAMESPACE_CREATED
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROJECT, PROVISIONING_CLUSTER, REGISTRATION_TOKEN
from herder.api.management.names import LEGACY_NAME, MANAGEMENT_NAME
from herder.api.observe_only import MARKED_KINDS, OBSERVE_ONLY
from herder.api.policies import policy
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE, ETCD_SNAPSHOT
from herder.engine.meta.kinds import Kind

_WRITTEN = ("CREATE", "UPDATE")
_CREATED = "request.operation == 'CREATE'"

_IS_MANAGER = (
    f"authorizer.group('{MANAGEMENT_CLUSTER.group}')"
    f".resource('{MANAGEMENT_CLUSTER.plural}').check('escalate').allowed()"
)


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _list(values: tuple[str, ...]) -> str:
    return f"[{', '.join(_text(each) for each in values)}]"


def _new(path: str) -> str:
    return f"object.{path}.orValue('')"


def _before(path: str) -> str:
    """Return the old value, "" if there is none."""
    return f"({_CREATED} ? '' : oldObject.{path}.orValue(''))"


def _changed(path: str) -> str:
    return f"{_new(path)} != '' && {_new(path)} != {_before(path)}"


def _marked(path: str) -> str:
    """Whether a write adds, changes or removes a value; an empty one counts."""
    return f"({_CREATED} ? object.{path}.hasValue() : object.{path} != oldObject.{path})"


def _annotation(name: str) -> str:
    return f"metadata.?annotations[?'{name}']"


# --- clusters -------------------------------------------------------------------------------------------------------

_NAME = (
    "(object.metadata.?name.orValue('') != '' ? object.metadata.name"
    f" : object.metadata.?generateName.orValue('') + '{tenancy.RANDOM_SUFFIX}')"
)


def _may_be_chosen(text: str) -> str:
    reserved = (tenancy.PROJECT_NAMESPACE, tenancy.GENERATED_CLUSTER_NAME)
    others = " && ".join(f"!{text}.matches({_text(each)})" for each in reserved)
    return f"({text}.matches({_text(tenancy.CLUSTER_NAME)}) && {others})"


def _is_system(text: str) -> str:
    prefixes = " || ".join(f"{text}.startsWith('{each}')" for each in tenancy.SYSTEM_PREFIXES)
    return f"({text} in {_list(tuple(sorted(SYSTEM_NAMESPACES)))} || {prefixes})"


_INTERNAL = "?spec.?internal.orValue(false) == true"
_WORKSPACE = "?spec.?fleetWorkspaceName"
_MAY_PROVISION = (
    f"authorizer.group('{PROVISIONING_CLUSTER.group}').resource('{PROVISIONING_CLUSTER.plural}')"
    f".namespace({_new(_WORKSPACE)}).check('create').allowed()"
)
_ASKED = _annotation(MANAGEMENT_NAME)

# --- projects -------------------------------------------------------------------------------------------------------

_IS_PROJECT = (
    "object.metadata.name.matches('^p-[a-z0-9]+$') && object.?spec.?clusterName.orValue('') == request.namespace"
    " && size(request.namespace) + size(object.metadata.name) < 63"
)
_JOINED = _annotation(PROJECT_ID)
_MAY_JOIN = (
    f"{_new(_JOINED)}.matches('^[^:]+:[^:]+$') && authorizer.group('{PROJECT.group}').resource('{PROJECT.plural}')"
    f".namespace({_new(_JOINED)}.split(':')[0]).name({_new(_JOINED)}.split(':')[1])"
    ".check('manage-namespaces').allowed()"
)

# --- Secrets --------------------------------------------------------------------------------------------------------

_IS_TOKEN = f"object.?type.orValue('') == '{tenancy.ACCOUNT_TOKEN_TYPE}'"
_TOKEN = f"?data[?'{tenancy.TOKEN_KEY}']"
_ACCOUNT = _annotation(tenancy.TOKEN_OF)
_IS_TOKEN_CONTROLLER = (
    "request.userInfo.username == 'system:kube-controller-manager'"
    " || request.userInfo.username.startsWith('system:serviceaccount:kube-system:')"
)
_GIVEN_TOKEN = (
    f"object.{_TOKEN}.hasValue() && size(object.{_TOKEN}.value()) > 0"
    f" && ({_CREATED} || object.{_TOKEN} != oldObject.{_TOKEN})"
)
_MAY_USE_ACCOUNT = (
    "(authorizer.group('').resource('serviceaccounts').subresource('token').namespace(request.namespace)"
    f".name({_new(_ACCOUNT)}).check('create').allowed()"
    " || authorizer.group('').resource('pods').namespace(request.namespace).check('create').allowed())"
)


def _labelled(name: str) -> str:
    """Whether a write sets a label, also to an empty value: the manager finds objects by labels that exist."""
    label = f"metadata.?labels[?'{name}']"
    return f"(object.{label}.hasValue() && ({_CREATED} || object.{label} != oldObject.{label}))"


_ISSUED_LABEL = " || ".join(_labelled(each) for each in tenancy.ISSUED_LABELS)
_ISSUED = f"{_ISSUED_LABEL} || ({_CREATED} && object.?type.orValue('') in {_list(tenancy.ISSUED_TYPES)})"


def _is_controlled(of: str) -> str:
    return f"{of}.metadata.?ownerReferences.orValue([]).exists(each, each.?controller.orValue(false))"


_IS_OWN = (
    f"(object.?type.orValue('Opaque') in {_list(tenancy.OWN_TYPES)} && !{_is_controlled('object')}"
    f" && !{_NAME}.matches({_text(tenancy.GENERATED_NAME)}))"
)
_NOT_OWN = f"({_CREATED} ? !{_IS_OWN} : ({_is_controlled('object')} && !{_is_controlled('oldObject')}))"
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
    return f"'{tenancy.ORPHAN_FINALIZER}' in {of}.metadata.?finalizers.orValue([])"


_DELETED = "request.operation == 'DELETE'"
_ORPHANING = (
    f"({_DELETED}"
    f" ? (request.options.?propagationPolicy.orValue('') == '{tenancy.ORPHAN_POLICY}'"
    " || request.options.?orphanDependents.orValue(false) == true)"
    f" : ({_holds_orphans('object')} && !({_CREATED} ? false : {_holds_orphans('oldObject')})))"
    f" && !{_IS_COMPONENT}"
)
_TYPE = f"({_DELETED} ? oldObject.?type.orValue('') : object.?type.orValue(''))"


def _released(kind: Kind, grants_rights: str) -> str:
    """Whether a write removes the manager's finalizer from a cluster being deleted, or deletes a cluster without it."""

    def is_held(of: str) -> str:
        return f"('{tenancy.HELD_BY[kind]}' in {of}.metadata.?finalizers.orValue([]))"

    going = "has(oldObject.metadata.deletionTimestamp)"
    return (
        f"({_DELETED} ? (!{going} && {grants_rights} && !{is_held('oldObject')} && !{_IS_COMPONENT})"
        f" : ({going} && {is_held('oldObject')} && !{is_held('object')}))"
    )


_HAS_MANAGEMENT = "oldObject.?status.?clusterName.orValue('') != ''"
_HAS_MEMBERS = (
    f"(oldObject.{_annotation(CREATOR_BOUND)}.orValue('') == 'true' || oldObject.?status.?conditions.orValue([])"
    f".exists(each, each.type == '{NAMESPACE_CREATED}' && each.status == 'True'))"
)


def _owners(of: str) -> str:
    return f"{of}.metadata.?ownerReferences.orValue([])"


_NEW_OWNER = (
    f"{_owners('object')}.exists(each, {_CREATED} || !{_owners('oldObject')}.exists(known, known.uid == each.uid))"
)

# --- Roles ----------------------------------------------------------------------------------------------------------

_OF_MACHINE = " || ".join(f"each.apiVersion.startsWith('{group}')" for group in tenancy.MACHINE_OWNERS)
_FILLS_ROLE = (
    f"({_NAME}.matches({_text(tenancy.GRANTED_ROLE)})"
    f" || (!({_CREATED}) && oldObject.metadata.?ownerReferences.orValue([])"
    f".exists(each, each.?controller.orValue(false) && ({_OF_MACHINE}))))"
    f" && ({_CREATED} || object.?rules.orValue([]) != oldObject.?rules.orValue([]))"
)

# --- Cluster API cores ----------------------------------------------------------------------------------------------

_MAY_RUN_CORE = f"authorizer.group('{CLUSTER.group}').resource('{CLUSTER.plural}').check('update').allowed()"


def _is_core(of: str) -> str:
    return f"{of}.metadata.?labels[?'{PROVIDER}'].orValue('') == '{CORE_LABEL}'"


_BECOMES_CORE = (
    f"{_is_core('object')} && ({_CREATED} || !({_is_core('oldObject')})"
    " || object.spec.?replicas.orValue(1) != oldObject.spec.?replicas.orValue(1))"
)

# --- restores -------------------------------------------------------------------------------------------------------


_IS_GENERATED = f"oldObject.{_annotation(restore_records.SPEC_COPIES[0])}.hasValue()"
_OTHER_MARKS = " || ".join(_marked(_annotation(mark)) for mark in names.COPIED_TO_CONTROL_PLANE)
_OTHER_RECORDS = " || ".join(_marked(f"?status.?{name}") for name in restore_records.RECORDS)
_OTHER_SNAPSHOT = " || ".join(
    (
        _CREATED,
        _NEW_OWNER,
        *(f"object.?{field} != oldObject.?{field}" for field in restore_records.SNAPSHOT_FIELDS),
        *(_marked(_annotation(mark)) for mark in restore_records.SNAPSHOT_MARKS),
    )
)

_CREATOR = _annotation(CREATOR)
_CREATED_BY = _annotation(CREATED_BY)
_READER = (
    f"(oldObject.{_CREATED_BY}.orValue('') != '' ? oldObject.{_CREATED_BY}.value() : oldObject.{_CREATOR}.orValue(''))"
)
"""Who created a Secret without the right to change others. An empty annotation names nobody."""
_OTHER_CREATOR = f"{_changed(_CREATOR)} && !({_CREATED} && {_new(_CREATOR)} == request.userInfo.username)"

_PROJECT_NAMESPACES = policy(
    "herder-project-namespaces",
    (NAMESPACE,),
    _WRITTEN,
    f"{_changed(_JOINED)} && !({_MAY_JOIN})",
    _IS_MANAGER,
    tenancy.BAD_MOVE,
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
        tenancy.BAD_CLUSTER_NAME,
    ),
    policy(
        "herder-internal-cluster",
        (MANAGEMENT_CLUSTER,),
        _WRITTEN,
        f"object.{_INTERNAL} && !({_CREATED} ? false : oldObject.{_INTERNAL})",
        _IS_MANAGER,
        tenancy.BAD_INTERNAL,
    ),
    policy(
        "herder-workspaces",
        (MANAGEMENT_CLUSTER,),
        _WRITTEN,
        f"{_changed(_WORKSPACE)} && ({_is_system(_new(_WORKSPACE))} || !{_MAY_PROVISION})",
        _IS_MANAGER,
        tenancy.BAD_WORKSPACE,
    ),
    policy(
        "herder-kept-workspaces",
        (MANAGEMENT_CLUSTER,),
        _WRITTEN,
        f"{_before(_WORKSPACE)} != '' && {_new(_WORKSPACE)} != {_before(_WORKSPACE)}",
        _IS_MANAGER,
        tenancy.BAD_MOVED,
    ),
    policy(
        "herder-requested-names",
        (PROVISIONING_CLUSTER,),
        _WRITTEN,
        f"{_changed(_ASKED)} && !{_may_be_chosen(_new(_ASKED))}",
        _IS_MANAGER,
        f"annotation {MANAGEMENT_NAME}: {tenancy.BAD_CLUSTER_NAME}",
    ),
    policy(
        "herder-cluster-places",
        (PROVISIONING_CLUSTER,),
        ("CREATE",),
        _is_system("request.namespace"),
        _IS_MANAGER,
        tenancy.BAD_PLACE,
    ),
    policy(
        "herder-cluster-ids",
        (PROVISIONING_CLUSTER,),
        ("UPDATE",),
        "object.?status.?clusterName.orValue('') != oldObject.?status.?clusterName.orValue('')",
        _IS_MANAGER,
        tenancy.BAD_ID,
        subresources=True,
    ),
    policy(
        "herder-pair-names",
        (PROVISIONING_CLUSTER,),
        ("CREATE",),
        f"{_NAME}.matches({_text(LEGACY_NAME)})",
        _IS_MANAGER,
        tenancy.BAD_PAIR_NAME,
    ),
    policy("herder-projects", (PROJECT,), ("CREATE",), f"!({_IS_PROJECT})", _IS_MANAGER, tenancy.BAD_PROJECT),
    _PROJECT_NAMESPACES,
    policy(
        "herder-account-tokens",
        (SECRET,),
        _WRITTEN,
        f"{_IS_TOKEN} && {_GIVEN_TOKEN} && !({_IS_TOKEN_CONTROLLER})",
        _IS_MANAGER,
        tenancy.BAD_TOKEN,
    ),
    policy(
        "herder-token-accounts",
        (SECRET,),
        _WRITTEN,
        f"{_IS_TOKEN} && ({_CREATED} || {_new(_ACCOUNT)} != {_before(_ACCOUNT)}) && !{_MAY_USE_ACCOUNT}",
        f"{_ALL_SECRETS}.check('get').allowed() || {_IS_MANAGER}",
        tenancy.BAD_ACCOUNT,
    ),
    policy(
        "herder-registration-tokens",
        (REGISTRATION_TOKEN,),
        _WRITTEN,
        _changed(f"?status.?{tenancy.TOKEN_KEY}"),
        _IS_MANAGER,
        tenancy.BAD_REGISTRATION,
    ),
    policy("herder-issued-secrets", (SECRET,), _WRITTEN, _ISSUED, _IS_MANAGER, tenancy.BAD_ISSUED),
    policy(
        "herder-own-secrets",
        (SECRET,),
        _WRITTEN,
        f"{_NOT_OWN} && !{_IS_SYSTEM} && !{_MAY_CHANGE_ALL}",
        _IS_MANAGER,
        tenancy.BAD_OWN,
    ),
    policy(
        "herder-orphans-of-clusters",
        (MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER),
        (*_WRITTEN, "DELETE"),
        _ORPHANING,
        _IS_MANAGER,
        tenancy.BAD_ORPHANS,
    ),
    policy(
        "herder-orphans-of-secrets",
        (SECRET,),
        (*_WRITTEN, "DELETE"),
        f"{_ORPHANING} && ({_TYPE} == '{CREDENTIAL_TYPE}' || !{_MAY_CHANGE_ALL})",
        _IS_MANAGER,
        tenancy.BAD_ORPHANS,
    ),
    policy(
        "herder-held-clusters",
        (PROVISIONING_CLUSTER,),
        ("UPDATE", "DELETE"),
        _released(PROVISIONING_CLUSTER, _HAS_MANAGEMENT),
        _IS_MANAGER,
        tenancy.BAD_RELEASE,
    ),
    policy(
        "herder-held-management-clusters",
        (MANAGEMENT_CLUSTER,),
        ("UPDATE", "DELETE"),
        _released(MANAGEMENT_CLUSTER, _HAS_MEMBERS),
        _IS_MANAGER,
        tenancy.BAD_RELEASE,
    ),
    policy(
        "herder-owners-of-clusters",
        tenancy.OWNED_CLUSTERS,
        _WRITTEN,
        f"{_NEW_OWNER} && !{_IS_SYSTEM}",
        _IS_MANAGER,
        tenancy.BAD_OWNERS,
    ),
    policy(
        "herder-observe-only-clusters",
        MARKED_KINDS,
        _WRITTEN,
        _marked(_annotation(OBSERVE_ONLY)),
        _IS_MANAGER,
        tenancy.BAD_OBSERVE_ONLY,
    ),
    policy(
        "herder-spec-copies",
        (CONTROL_PLANE,),
        _WRITTEN,
        " || ".join(_marked(_annotation(mark)) for mark in restore_records.SPEC_COPIES),
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
    policy("herder-granted-roles", (ROLE,), _WRITTEN, _FILLS_ROLE, _IS_MANAGER, tenancy.BAD_ROLE),
    policy(
        "herder-core-leases",
        (LEASE,),
        _WRITTEN,
        f"{_NAME} == '{LEASE_NAME}'",
        f"{_MAY_RUN_CORE} || {_IS_MANAGER}",
        tenancy.BAD_CORE,
    ),
    policy(
        "herder-core-providers",
        (PROVIDERS,),
        _WRITTEN,
        f"object.?type.orValue('') == '{CORE_PROVIDER}'",
        f"{_MAY_RUN_CORE} || {_IS_MANAGER}",
        tenancy.BAD_CORE,
    ),
    policy(
        "herder-core-deployments",
        (DEPLOYMENT,),
        _WRITTEN,
        _BECOMES_CORE,
        f"{_MAY_RUN_CORE} || {_IS_MANAGER}",
        tenancy.BAD_CORE,
    ),
    policy(
        "herder-creator-rights",
        (SECRET,),
        ("UPDATE",),
        f"{_has_rights('oldObject')} && !({_has_rights('object')})",
        _IS_MANAGER,
        tenancy.BAD_FINALIZER,
    ),
    policy(
        "herder-credential-creators",
        (SECRET,),
        _WRITTEN,
        " || ".join(_marked(_annotation(mark)) for mark in tenancy.MANAGED_MARKS),
        _IS_MANAGER,
        tenancy.BAD_MARK,
    ),
    policy(
        "herder-credential-contents",
        (SECRET,),
        ("UPDATE",),
        f"oldObject.?type.orValue('Opaque') in {_list(tenancy.OWN_TYPES)} && {_READER} != '' && "
        f"{_READER} != request.userInfo.username && object.?data.orValue({{}}) != oldObject.?data.orValue({{}})",
        "false",
        tenancy.BAD_OVERWRITE.format(f"{CREATED_BY} or {CREATOR}"),
    ),
    policy(
        "herder-named-creators",
        (SECRET,),
        ("CREATE",),
        f"{_new(_CREATOR)} == '' && !{_IS_SYSTEM} && !{_MAY_CHANGE_ALL}",
        _IS_MANAGER,
        tenancy.BAD_UNNAMED,
    ),
    policy("herder-secret-creators", (SECRET,), _WRITTEN, _OTHER_CREATOR, _IS_MANAGER, tenancy.BAD_CREATOR),
)
