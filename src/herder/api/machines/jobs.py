"""Build the Jobs that create and remove machines, with their service account, permissions, environment and files."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field

from herder.api.capi.kinds import SECRET
from herder.api.capi.names import CLUSTER_NAME, labels_of
from herder.api.machines import names
from herder.api.machines.drivers.arguments import BOOTSTRAP_DIRECTORY, FILES_DIRECTORY, Download
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
"""A Job talks to services and machines that users choose, and its process buffers whole responses."""
CREATE_ATTEMPTS_AFTER_FIRST, REMOVE_ATTEMPTS_AFTER_FIRST = 0, 3
# on state Secrets: the credential the machine was created with
CREDENTIAL_ANNOTATION = "machine.herder.io/cloud-credential"

RUNNER_LABEL = "herder.io/runner"
HOSTNAME_LABEL = "kubernetes.io/hostname"
POD_DRIVER, POD_DRIVER_ROLE = "pod", "rke2-machine-provisioner"


@dataclass(frozen=True, slots=True)
class Host:
    """The host whose runner executes our Jobs.

    `directory` is set for drivers whose machines run on that host. `approval_key` signs the Jobs: the runner executes
    no others.
    """

    node: str
    directory: str = ""
    approval_key: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class JobInputs:
    """All inputs of a Job and its dependents."""

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


def labels(work: JobInputs) -> dict[str, str]:
    status = {
        names.INFRA_GROUP_LABEL: work.kind.group,
        names.INFRA_VERSION_LABEL: work.kind.version,
        names.INFRA_KIND_LABEL: work.kind.kind,
        names.INFRA_NAME_LABEL: names.safe_concat(work.name),  # a label is shorter than a name may be
        names.MACHINE_NAME_LABEL: names.safe_concat(work.machine_name),
    }
    return status | {names.INFRA_REMOVE_LABEL: "true"} if work.removes else status


def _meta(work: JobInputs, name: str) -> Object:
    """The infrastructure machine owns the objects, but they do not block its foreground deletion."""
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
    """Build the state Secret. It has no owner: it is deleted only when the machine is known to be removed."""
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


def environment_secret(work: JobInputs) -> Object:
    meta = _meta(work, names.environment_secret(work.name))
    meta["labels"][names.BACKUP_LABEL] = "true"
    return _object(SECRET, meta, type="Opaque", data=_encoded(work.environment))


def files_secret(work: JobInputs) -> Object:
    return _object(SECRET, _meta(work, work.job_name), type="Opaque", data=_encoded(work.files))


# --- permissions ----------------------------------------------------------------------------------------------------


def service_account(work: JobInputs) -> Object:
    return _object(SERVICE_ACCOUNT, _meta(work, work.job_name))


def role(work: JobInputs) -> Object:
    own_state = names.state_secret(work.name)
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [own_state], "verbs": ["get", "update"]}
    return _object(ROLE, _meta(work, names.provision_role(work.name)), rules=[rule])


def role_bindings(work: JobInputs) -> list[Object]:
    own = names.provision_role(work.name)
    bindings = [_binding(work, own, own)]
    if work.driver == POD_DRIVER:  # its machines are pods, which its Jobs create themselves
        bindings.append(_binding(work, f"{work.job_name}-extension", POD_DRIVER_ROLE))
    return bindings


def _binding(work: JobInputs, name: str, role_name: str) -> Object:
    return _object(
        ROLE_BINDING,
        _meta(work, name),
        roleRef={"apiGroup": ROLE.group, "kind": ROLE.kind, "name": role_name},
        subjects=[{"kind": SERVICE_ACCOUNT.kind, "name": work.job_name, "namespace": work.namespace}],
    )


# --- the Job --------------------------------------------------------------------------------------------------------


def job(work: JobInputs) -> Object:
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
    """Escape an argument so that kubelet and runner expand no $(NAME).

    Users who edit a machine may use its cloud credential, which is in the environment, but must not be able to read it.
    """
    return argument.replace("$", "$$")


def _approval(work: JobInputs, pod: Object) -> Object:
    """Sign the Job together with its Secrets, which determine its environment and files."""
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


def _variables(work: JobInputs) -> dict[str, str]:
    found = {"HOME": HOME, "MACHINE_STORAGE_PATH": STORAGE, names.DRIVER_VARIABLE: work.driver}
    if work.host is not None and work.host.directory:
        found[SOCKET_VARIABLE] = f"{SOCKET_MOUNT}/{SOCKET_NAME}"
    return found


def _mounts(work: JobInputs) -> tuple[list[Object], list[Object]]:
    """Return the volume mounts and their volumes."""
    volumes_: list[tuple[str, str, Object]] = [("home", HOME, {"emptyDir": {}})]
    if work.bootstrap_secret:
        volumes_.append(("bootstrap", BOOTSTRAP_DIRECTORY, {"secret": {"secretName": work.bootstrap_secret}}))
    if work.files:
        volumes_.append(("machine-files", FILES_DIRECTORY, {"secret": {"secretName": work.job_name}}))
    if work.host is not None and work.host.directory:
        volumes_.append(("host", SOCKET_MOUNT, {"hostPath": {"path": work.host.directory, "type": "Directory"}}))
    mounts = [{"name": name, "mountPath": path} | _read_only(source) for name, path, source in volumes_]
    return mounts, [{"name": name, **source} for name, _, source in volumes_]


def _read_only(source: Object) -> Object:
    """A Job connects to the socket of its host, and must not be able to replace it."""
    return {"readOnly": True} if "emptyDir" not in source else {}


def _placement(host: Host | None) -> Object:
    """Schedule to our runner if there is one, and to its own node if the machines run there."""
    if host is None:
        return {}
    selector = {RUNNER_LABEL: "true"} | ({HOSTNAME_LABEL: host.node} if host.directory else {})
    toleration = {"key": RUNNER_LABEL, "operator": "Exists", "effect": "NoSchedule"}
    return {"nodeSelector": selector, "tolerations": [toleration]}


def job_dependents(infra: str) -> tuple[tuple[Kind, str], ...]:
    """Return kind and name of the objects that serve a Job and are useless without it."""
    job_name = names.provision_job(infra)
    roles = dict.fromkeys((names.provision_role(infra), job_name))  # earlier versions truncated their names
    return (
        (SECRET, names.environment_secret(infra)),
        (SECRET, job_name),
        *((kind, name) for name in roles for kind in (ROLE_BINDING, ROLE)),
        (SERVICE_ACCOUNT, job_name),
    )
