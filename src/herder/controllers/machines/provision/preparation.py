"""Gather and check everything a Job needs: driver, credential, files, host."""

from __future__ import annotations

import base64
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from herder.api import settings
from herder.api.capi.contract import reference_group
from herder.api.capi.kinds import SECRET_METADATA
from herder.api.capi.names import annotations_of
from herder.api.machines import credentials, hosts, names
from herder.api.machines.credentials import Problem, SecretKey
from herder.api.machines.drivers import known
from herder.api.machines.drivers.arguments import (
    Download,
    create_arguments,
    downloaded,
    driver_flags,
    host_file_field,
    host_path_field,
    in_zone,
    option_of_ssh,
    remove_arguments,
    spec_fields,
    with_files,
)
from herder.api.machines.drivers.documents import document_problem
from herder.api.machines.drivers.registered import default_node_driver
from herder.api.machines.jobs import Host, JobInputs
from herder.api.machines.kinds import NODE_DRIVER
from herder.api.references.approvals import problem, recorded
from herder.api.references.catalogue import BOOTSTRAP_DATA, CREDENTIAL, SECRETS, Target
from herder.api.rke import names as rke_names
from herder.api.rke.kinds import BOOTSTRAP
from herder.controllers.machines.provision.scope import ProvisionScope
from herder.controllers.machines.provision.secret_reader import read, texts
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision
from herder.engine.runtime.view import View

MANAGEMENT_CLUSTER = "provisioning.cattle.io/management-cluster-name"


NO_HOST_ROLE: Mapping[str, Mapping[str, str]] = {
    "amazonec2": {"AWS_EC2_METADATA_DISABLED": "true"},
    "google": {"GOOGLE_APPLICATION_CREDENTIALS": "/dev/null"},  # not a credential, so the library stops there
}
"""Variables by driver.

Without a credential the SDK would use the role of the instance that runs the Job, which is the manager's.
Administrators who want that pass a variable of the manager on (setting whitelist-envvars).
"""


class Pending(Exception):
    """A Secret is still being read."""

    def __init__(self, decision: Decision) -> None:
        super().__init__("waiting for a Secret to be read")
        self.decision = decision


def prepare(scope: ProvisionScope, manager_env: Mapping[str, str], *, removes: bool) -> JobInputs:
    """Build the Job's inputs. `manager_env` is the environment that Jobs may inherit from. Raises Problem or
    Pending."""
    node_driver = find_node_driver(scope.view, scope.driver)
    if node_driver is None and not removes and scope.driver not in known.NATIVE_DRIVERS:
        raise Problem(f"no NodeDriver provides driver {scope.driver}; create it, or delete the machine")
    declared = node_driver or default_node_driver(scope.driver)
    aliases = known.file_aliases(declared) if declared else {}
    credential = _credential(scope, node_driver, removes=removes)
    if why := document_problem(scope.driver, credential) or document_problem(scope.driver, spec_fields(scope.infra)):
        raise Problem(why)
    kept_secret = {field: value for field, value in credential.items() if field in aliases}
    fields, files = with_files(kept_secret | _left_open(scope.infra, credential, aliases), aliases)
    if not removes:
        _check_fields(scope.driver, fields)
    if not removes and node_driver is not None and not known.is_built_in(node_driver):
        _check_paths(scope, aliases)
    with_defaults = {**(_credential_defaults(node_driver) if credential else {}), **credential}
    variables = credentials.variables(scope.driver, {k: v for k, v in with_defaults.items() if k not in aliases})
    host = _host(scope)
    environment = (
        {**NO_HOST_ROLE.get(scope.driver, {})} | _inherited(scope.view, manager_env) | variables | host.environment
    )
    download = _download(scope, node_driver, host.host)
    state = names.state_secret(scope.name)
    if not removes and scope.machine is not None:
        _check_bootstrap_data(scope, scope.machine)
    if removes:
        arguments = remove_arguments(
            download=download, namespace=scope.namespace, state=state, instance=names.instance_name(scope.name)
        )
    else:
        arguments = _creation(scope, download, state, fields)
    return JobInputs(
        infra=scope.infra,
        kind=scope.kind,
        driver=scope.driver,
        machine_name=scope.machine_name,
        removes=removes,
        image=scope.view.setting(_image(scope, node_driver)),
        pull_policy=scope.view.setting(settings.MACHINE_IMAGE_PULL_POLICY),
        download=download,
        arguments=arguments,
        environment=environment,
        files=files,
        bootstrap_secret="" if removes else bootstrap_secret(scope.machine),
        host=host.host,
    )


def _check_fields(driver: str, fields: Mapping[str, Any]) -> None:
    if field := host_path_field(driver, fields):
        raise Problem(f"spec.{field}: must be an http or https URL; files of the host that runs Jobs are not used")
    if field := downloaded(driver, fields):
        advice = "leave it empty, and set creationType to template, vm or library"
        raise Problem(f"spec.{field}: the host that runs Jobs downloads nothing for machines; {advice}")
    if field := option_of_ssh(fields):
        raise Problem(f"spec.{field}: must be the name of a user, and must not begin with a dash")


def _left_open(infra: Object, credential: Mapping[str, str], aliases: Container[str]) -> dict[str, Any]:
    """The fields of the spec that the credential does not hold. Flags take precedence over variables, and the author of
    a machine config need not be allowed to read the credential: a config must not choose the server that gets its
    password."""
    fields = spec_fields(infra).items()
    return {field: value for field, value in fields if not credential.get(field) or field in aliases}


def _check_paths(scope: ProvisionScope, aliases: Mapping[str, str]) -> None:
    if field := host_file_field(spec_fields(scope.infra), aliases):
        advice = f"list it in annotation {known.FILE_ALIASES} of the NodeDriver, so that it takes the content of a file"
        raise Problem(f"spec.{field}: files of the host that runs Jobs are not used; {advice}")


def bootstrap_secret(machine: Object | None) -> str:
    return str((((machine or {}).get("spec") or {}).get("bootstrap") or {}).get("dataSecretName") or "")


def _creation(scope: ProvisionScope, download: Download, state: str, fields: Mapping[str, object]) -> list[str]:
    placed = in_zone(scope.driver, fields, ((scope.machine or {}).get("spec") or {}).get("failureDomain") or "")
    limit = annotations_of(scope.infra).get(names.HOSTNAME_LIMIT)
    if limit is None and scope.machine is not None:
        limit = annotations_of(scope.machine).get(names.HOSTNAME_LIMIT)
    return create_arguments(
        download=download,
        namespace=scope.namespace,
        state=state,
        driver=scope.driver,
        instance=names.instance_name(scope.name),
        hostname=names.hostname(scope.name, limit),
        flags=driver_flags(scope.driver, placed, cluster=_cluster_name(scope)),
    )


def _cluster_name(scope: ProvisionScope) -> str:
    if scope.cluster is None:
        return ""
    return annotations_of(scope.cluster).get(MANAGEMENT_CLUSTER) or str(scope.cluster["metadata"]["name"])


# --- driver ---------------------------------------------------------------------------------------------------------


def find_node_driver(view: View, driver: str) -> Object | None:
    """The NodeDriver is usually named like its driver, but users may choose another name."""
    named = view.get(NODE_DRIVER, driver)
    if named is not None and known.driver_name(named) == driver:
        return named
    return next((found for found in view.select(NODE_DRIVER) if known.driver_name(found) == driver), None)


def _download(scope: ProvisionScope, node_driver: Object | None, host: Host | None) -> Download:
    """Where the driver is downloaded from; without a NodeDriver, from the machine's status.

    Admission does not know who writes the status, so a program that it names never runs on the manager's host.
    """
    if node_driver is None and scope.driver in known.NATIVE_DRIVERS:
        return Download()
    if node_driver is None and host is not None:
        raise Problem(f"no NodeDriver provides driver {scope.driver}; create it again to remove the machine")
    if node_driver is None:
        return Download(scope.status.get("driverUrl") or "", scope.status.get("driverHash") or "")
    if known.is_built_in(node_driver):
        return Download()
    return Download(node_driver["spec"].get("url") or "", node_driver["spec"].get("checksum") or "")


def _image(scope: ProvisionScope, node_driver: Object | None) -> str:
    """Name of the setting that contains the image."""
    if node_driver is not None:
        program = known.program_of(node_driver)
    else:
        program = known.OWN_PROGRAM if scope.driver in known.NATIVE_DRIVERS else known.GO_PROGRAM
    return settings.MACHINE_IMAGE if program == known.OWN_PROGRAM else settings.RANCHER_MACHINE_IMAGE


# --- environment ----------------------------------------------------------------------------------------------------


def _inherited(view: View, manager_env: Mapping[str, str]) -> dict[str, str]:
    wanted = known.listed(view.setting(settings.JOB_ENVIRONMENT))
    return {name: manager_env[name] for name in wanted if name in manager_env}


def _credential(scope: ProvisionScope, node_driver: Object | None, *, removes: bool) -> dict[str, str]:
    """Fields of the cloud credential; file fields such as SSH keys may be in it instead of in the spec.

    On removal, a field that the driver does not know is ignored.
    """
    place = credentials.credential_key(scope.infra)
    if place is None:
        return {}
    credentials.check_credential_namespace(place, scope.infra)
    _check_approved(scope.view, scope.infra, CREDENTIAL, place)
    secret, pending = read(scope, place)
    if pending is not None:
        raise Pending(pending)
    if secret is None:
        raise Problem(
            f"spec.common.cloudCredentialSecretName: Secret {place} does not exist; create it, "
            f"with type {credentials.CREDENTIAL_TYPE}"
        )
    fields = credentials.fields_of(secret, scope.driver)
    declaring = [each for each in (node_driver, default_node_driver(scope.driver)) if each is not None]
    if declaring:
        usable = frozenset().union(*map(known.usable_credential_fields, declaring))
        fields = credentials.usable(place, fields, usable, scope.driver, strict=not removes)
    if node_driver is not None:
        credentials.check_fields(place, fields, known.credential_fields(node_driver).required, scope.driver)
    return fields


def _credential_defaults(node_driver: Object | None) -> Mapping[str, str]:
    return known.credential_fields(node_driver).defaults if node_driver is not None else {}


def _check_bootstrap_data(scope: ProvisionScope, machine: Object) -> None:
    """The machine can read it, so it must be the Machine's own, or be approved."""
    data, config = bootstrap_secret(machine), (machine["spec"].get("bootstrap") or {}).get("configRef") or {}
    # The Machine controller copies the name from the bootstrap object's status, whose author admission does not know.
    if config.get("kind") == BOOTSTRAP.kind and data != rke_names.bootstrap_secret(config["name"]):
        raise Problem(
            f"{BOOTSTRAP_DATA}: Secret {data} is not that of RKEBootstrap {config['name']}; recreate the Machine"
        )
    place = SecretKey(scope.namespace, data)
    found = scope.view.get(SECRET_METADATA, data, scope.namespace)
    if config and found is not None and not _is_owned(found, config) and not _is_approved_by_user(machine, place):
        raise Problem(
            f"{BOOTSTRAP_DATA}: Secret {place} does not belong to {config['kind']} {config['name']}; it needs a "
            "controlling owner reference to it"
        )
    _check_approved(scope.view, machine, BOOTSTRAP_DATA, place)


def _is_owned(secret: Object, config: Object) -> bool:
    """Whether the bootstrap object controls the Secret, as the bootstrap provider contract requires."""
    wanted = reference_group(config), config["kind"], config["name"]
    owners = [each for each in secret["metadata"].get("ownerReferences") or () if each.get("controller")]
    return any((each["apiVersion"].rpartition("/")[0], each["kind"], each["name"]) == wanted for each in owners)


def _is_approved_by_user(machine: Object, place: SecretKey) -> bool:
    """Whether a user named the Secret, and was allowed to read it; the manager's own approvals have no author."""
    key = BOOTSTRAP_DATA, Target(*SECRETS, *place)
    return any(each.author and each.key == key for each in recorded(machine) or ())


def _check_approved(view: View, obj: Object, path: str, place: SecretKey) -> None:
    found = view.get(SECRET_METADATA, place.name, place.namespace)
    if found is not None and (why := problem(obj, path, Target(*SECRETS, *place), found["metadata"]["uid"])):
        raise Problem(f"{path}: {why}")


# --- host -----------------------------------------------------------------------------------------------------------


class _HostFound(NamedTuple):
    host: Host | None
    environment: dict[str, str]


def _host(scope: ProvisionScope) -> _HostFound:
    """If a runner of ours exists, it runs the Jobs; those of drivers for its host may use the host daemon there."""
    hosted = scope.driver in hosts.HOSTED_DRIVERS
    if scope.view.get(SECRET_METADATA, hosts.HOST_SECRET, hosts.HOST_NAMESPACE) is None:
        if hosted:
            raise Problem(
                f"machines of driver {scope.driver} need a host daemon, and no host has registered one; "
                "start `herder up`, or `herder run` with the runner, on the host that is to have them"
            )
        return _HostFound(None, {})
    secret, pending = read(scope, SecretKey(hosts.HOST_NAMESPACE, hosts.HOST_SECRET))
    if pending is not None:
        raise Pending(pending)
    values = texts(secret or {})
    node, directory = values.get(hosts.HOST_NODE, ""), values.get(hosts.HOST_DIRECTORY, "")
    if secret is None or not node or not directory or hosts.HOST_KEY not in secret["data"]:
        where = f"{hosts.HOST_NAMESPACE}/{hosts.HOST_SECRET}"
        raise Problem(f"Secret {where} is incomplete; start `herder up` on the host again")
    approval_key = hosts.approval_key(base64.b64decode(secret["data"][hosts.HOST_KEY]))
    if not hosted:
        return _HostFound(Host(node="", approval_key=approval_key), {})
    host = Host(node, directory, approval_key)
    return _HostFound(host, {hosts.CREDENTIAL_VARIABLE: _host_credential(scope, secret)})


def _host_credential(scope: ProvisionScope, secret: Object) -> str:
    key = base64.b64decode(secret["data"][hosts.HOST_KEY])
    return hosts.machine_credential(key, scope.namespace, names.instance_name(scope.name))
