"""What a Job that creates or removes a machine is made of: itself, its rights, its environment and its files."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field

from herder.api.capi.kinds import SECRET
from herder.api.capi.names import CLUSTER_NAME, labels_of
from herder.api.machines import names
from herder.api.machines.arguments import BOOTSTRAP_DIRECTORY, FILES_DIRECTORY, Download
from herder.api.machines.hosts import SOCKET_MOUNT, SOCKET_NAME, SOCKET_VARIABLE
from herder.api.machines.state import STATE_FINALIZER
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runner.approval import Owner, approve

JOB = Kind("batch", "v1", "Job", "jobs")
SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts")
ROLE = Kind("rbac.authorization.k8s.io", "v1", "Role", "roles")
ROLE_BINDING = Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")

CONTAINER = "machine"
HOME = "/home/machine"
STORAGE = f"{HOME}/.docker/machine"
USER = 1000
MEMORY_REQUESTED, MEMORY_LIMIT = "64Mi", "1Gi"
"""Users choose the services and machines that a Job talks to, and its program keeps whole answers in memory."""
CREATE_ATTEMPTS_AFTER_FIRST, REMOVE_ATTEMPTS_AFTER_FIRST = 0, 3
CREDENTIAL_ANNOTATION = "machine.herder.io/cloud-credential"  # on state Secrets: which one the machine was made with

RUNNER_LABEL = "herder.io/runner"
HOSTNAME_LABEL = "kubernetes.io/hostname"
POD_DRIVER, POD_DRIVER_ROLE = "pod", "rke2-machine-provisioner"


@dataclass(frozen=True, slots=True)
class Host:
    """The host whose runner runs our Jobs; `directory` is there for drivers whose machines are that host's.

    `approval_key` signs the Jobs: the runner runs no others.
    """

    node: str
    directory: str = ""
    approval_key: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Work:
    """All that a Job and what it needs is rendered from."""

    infra: Object
    kind: Kind
    driver: str
    machine_name: str
    removes: bool
    image: str
    pull_policy: str
    download: Download
    arguments: list[str]
    environment: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)
    bootstrap_secret: str = ""
    host: Host | None = None

    @property
    def namespace(self) -> str:
        return str(self.infra["metadata"]["namespace"])

    @property
    def name(self) -> str:
        return str(self.infra["metadata"]["name"])

    @property
    def job_name(self) -> str:
        return names.provision_job(self.name)


def labels(work: Work) -> dict[str, str]:
    status = {
        names.INFRA_GROUP_LABEL: work.kind.group,
        names.INFRA_VERSION_LABEL: work.kind.version,
        names.INFRA_KIND_LABEL: work.kind.kind,
        names.INFRA_NAME_LABEL: names.safe_concat(work.name),  # a label is shorter than a name may be
        names.MACHINE_NAME_LABEL: names.safe_concat(work.machine_name),
    }
    return status | {names.INFRA_REMOVE_LABEL: "true"} if work.removes else status


def _meta(work: Work, name: str) -> Object:
    """The machine's object owns what serves its Jobs, but is not held up by it when it is deleted in the foreground."""
    meta = work.infra["metadata"]
    owner = {"apiVersion": work.kind.api_version, "kind": work.kind.kind, "name": work.name, "uid": meta["uid"]}
    return {
        "name": name,
        "namespace": work.namespace,
        "labels": labels(work),
        "ownerReferences": [owner | {"controller": True}],
    }


def _object(kind: Kind, meta: Object, **rest: object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **rest}


def _encoded(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}


# --- Secrets --------------------------------------------------------------------------------------------------------


def state_secret(infra: Object, kind: Kind, machine_name: str, credential: str) -> Object:
    """Owned by nobody: it goes when the machine is removed for certain, and not with any object."""
    meta = infra["metadata"]
    cluster = labels_of(infra).get(CLUSTER_NAME)
    return _object(
        SECRET,
        {
            "name": names.state_secret(meta["name"]),
            "namespace": meta["namespace"],
            "labels": {
                names.BACKUP_LABEL: "true",
                names.INFRA_KIND_LABEL: kind.kind,
                names.INFRA_NAME_LABEL: names.safe_concat(meta["name"]),
                names.MACHINE_NAME_LABEL: names.safe_concat(machine_name),
                **({CLUSTER_NAME: cluster} if cluster else {}),
            },
            "annotations": {CREDENTIAL_ANNOTATION: credential} if credential else {},
            "finalizers": [STATE_FINALIZER],
        },
        type=names.STATE_SECRET_TYPE,
        data={},
    )


def environment_secret(work: Work) -> Object:
    meta = _meta(work, names.environment_secret(work.name))
    meta["labels"][names.BACKUP_LABEL] = "true"
    return _object(SECRET, meta, type="Opaque", data=_encoded(work.environment))


def files_secret(work: Work) -> Object:
    return _object(SECRET, _meta(work, work.job_name), type="Opaque", data=_encoded(work.files))


# --- rights ---------------------------------------------------------------------------------------------------------


def service_account(work: Work) -> Object:
    return _object(SERVICE_ACCOUNT, _meta(work, work.job_name))


def role(work: Work) -> Object:
    own_state = names.state_secret(work.name)
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [own_state], "verbs": ["get", "update"]}
    return _object(ROLE, _meta(work, work.job_name), rules=[rule])


def role_bindings(work: Work) -> list[Object]:
    bindings = [_binding(work, work.job_name, work.job_name)]
    if work.driver == POD_DRIVER:  # its machines are pods, which its Jobs create themselves
        bindings.append(_binding(work, f"{work.job_name}-extension", POD_DRIVER_ROLE))
    return bindings


def _binding(work: Work, name: str, role_name: str) -> Object:
    return _object(
        ROLE_BINDING,
        _meta(work, name),
        roleRef={"apiGroup": ROLE.group, "kind": ROLE.kind, "name": role_name},
        subjects=[{"kind": SERVICE_ACCOUNT.kind, "name": work.job_name, "namespace": work.namespace}],
    )


# --- the Job --------------------------------------------------------------------------------------------------------


def job(work: Work) -> Object:
    mounts, volumes = _mounts(work)
    container: Object = {
        "name": CONTAINER,
        "image": work.image,
        "imagePullPolicy": work.pull_policy,
        "args": [_literal(argument) for argument in work.arguments],
        "envFrom": [{"secretRef": {"name": names.environment_secret(work.name)}}],
        "env": [{"name": name, "value": value} for name, value in _variables(work).items()],
        "securityContext": {"runAsUser": USER, "runAsGroup": USER},
        "resources": {"requests": {"memory": MEMORY_REQUESTED}, "limits": {"memory": MEMORY_LIMIT}},
        "volumeMounts": mounts,
    }
    pod: Object = {
        "serviceAccountName": work.job_name,
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": volumes,
        **_placement(work.host),
    }
    return _object(
        JOB,
        _meta(work, work.job_name),
        spec={
            "backoffLimit": REMOVE_ATTEMPTS_AFTER_FIRST if work.removes else CREATE_ATTEMPTS_AFTER_FIRST,
            "template": {"metadata": {"labels": labels(work)} | _approval(work, pod), "spec": pod},
        },
    )


def _literal(argument: str) -> str:
    """An argument in which the kubelet and the runner expand no $(NAME).

    Users who edit a machine may use its cloud credential, which is in the environment, but must not read it.
    """
    return argument.replace("$", "$$")


def _approval(work: Work, pod: Object) -> Object:
    """The Secrets written for the Job decide over variables and files of its program, so they are signed with it."""
    if work.host is None:
        return {}
    meta, kind = work.infra["metadata"], work.kind
    secrets = {names.environment_secret(work.name): work.environment}
    if work.files:
        secrets[work.job_name] = work.files
    annotations = approve(
        work.host.approval_key,
        work.namespace,
        job=work.job_name,
        owner=Owner(kind.group, kind.version, kind.plural, work.name, meta["uid"]),
        spec=pod,
        secrets={name: {field: text.encode() for field, text in data.items()} for name, data in secrets.items()},
    )
    return {"annotations": annotations}


def _variables(work: Work) -> dict[str, str]:
    found = {"HOME": HOME, "MACHINE_STORAGE_PATH": STORAGE, names.DRIVER_VARIABLE: work.driver}
    if work.host is not None and work.host.directory:
        found[SOCKET_VARIABLE] = f"{SOCKET_MOUNT}/{SOCKET_NAME}"
    return found


def _mounts(work: Work) -> tuple[list[Object], list[Object]]:
    """Where the container sees what, and where it comes from."""
    places: list[tuple[str, str, Object]] = [("home", HOME, {"emptyDir": {}})]
    if work.bootstrap_secret:
        places.append(("bootstrap", BOOTSTRAP_DIRECTORY, {"secret": {"secretName": work.bootstrap_secret}}))
    if work.files:
        places.append(("machine-files", FILES_DIRECTORY, {"secret": {"secretName": work.job_name}}))
    if work.host is not None and work.host.directory:
        places.append(("host", SOCKET_MOUNT, {"hostPath": {"path": work.host.directory, "type": "Directory"}}))
    mounts = [{"name": name, "mountPath": path} | _read_only(source) for name, path, source in places]
    return mounts, [{"name": name, **source} for name, _, source in places]


def _read_only(source: Object) -> Object:
    """A Job connects to the socket of its host, and must not be able to put another in its place."""
    return {"readOnly": True} if "emptyDir" not in source else {}


def _placement(host: Host | None) -> Object:
    """On a runner of ours where there is one; on its own node where the machines are that node's."""
    if host is None:
        return {}
    selector = {RUNNER_LABEL: "true"} | ({HOSTNAME_LABEL: host.node} if host.directory else {})
    toleration = {"key": RUNNER_LABEL, "operator": "Exists", "effect": "NoSchedule"}
    return {"nodeSelector": selector, "tolerations": [toleration]}


def attendants(infra: str) -> tuple[tuple[Kind, str], ...]:
    """By kind and name: what serves a Job and is of no use without it."""
    job_name = names.provision_job(infra)
    return (
        (SECRET, names.environment_secret(infra)),
        (SECRET, job_name),
        (ROLE_BINDING, job_name),
        (ROLE, job_name),
        (SERVICE_ACCOUNT, job_name),
    )
