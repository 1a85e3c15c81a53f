"""Everything that a Job needs, gathered and checked: driver, credential, files, host. Or what is missing, in words."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import NamedTuple

from herder.api import settings
from herder.api.capi.contract import reference_group
from herder.api.capi.kinds import SECRET_METADATA
from herder.api.capi.names import annotations_of
from herder.api.machines import credentials, hosts, known, names
from herder.api.machines.arguments import (
    Download,
    create_arguments,
    driver_flags,
    file_of_the_host,
    in_zone,
    path_of_the_host,
    remove_arguments,
    spec_fields,
    with_files,
)
from herder.api.machines.credentials import Place, Problem
from herder.api.machines.documents import document_problem
from herder.api.machines.jobs import Host, Work
from herder.api.machines.kinds import NODE_DRIVER
from herder.api.machines.registered import shipped
from herder.api.references.approvals import problem, recorded
from herder.api.references.catalogue import BOOTSTRAP_DATA, CREDENTIAL, SECRETS, Target
from herder.api.rke import names as rke_names
from herder.api.rke.kinds import BOOTSTRAP
from herder.controllers.machines.provision.reading import read, texts
from herder.controllers.machines.provision.scene import Scene
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision
from herder.engine.runtime.view import View

MANAGEMENT_CLUSTER = "provisioning.cattle.io/management-cluster-name"


NO_HOST_ROLE: Mapping[str, Mapping[str, str]] = {"amazonec2": {"AWS_EC2_METADATA_DISABLED": "true"}}
"""By driver. Without a credential its SDK would act as the role of the instance that the Job runs on, which is the
manager's and no user's. Administrators who want that pass a variable of the manager on (setting whitelist-envvars)."""


class Pending(Exception):
    """Something is still being read."""

    def __init__(self, decision: Decision) -> None:
        super().__init__("something is still being read")
        self.decision = decision


def prepare(scene: Scene, passed: Mapping[str, str], *, removes: bool) -> Work:
    """`passed` is the environment that Jobs may inherit of. Raises Problem or Pending."""
    node_driver = find_node_driver(scene.view, scene.driver)
    if node_driver is None and not removes and scene.driver not in known.NATIVE_DRIVERS:
        raise Problem(f"there is no NodeDriver for driver {scene.driver}; create it, or delete the machine")
    declared = node_driver or shipped(scene.driver)
    aliases = known.file_aliases(declared) if declared else {}
    credential = _credential(scene, node_driver, removes=removes)
    if why := document_problem(scene.driver, credential) or document_problem(scene.driver, spec_fields(scene.infra)):
        raise Problem(why)
    kept_secret = {field: value for field, value in credential.items() if field in aliases}
    fields, files = with_files(kept_secret | spec_fields(scene.infra), aliases)
    if (field := path_of_the_host(scene.driver, fields)) and not removes:
        raise Problem(f"spec.{field}: must be an http or https URL; files of the host that runs Jobs are not used")
    if not removes and node_driver is not None and not known.is_built_in(node_driver):
        _check_paths(scene, aliases)
    variables = credentials.variables(scene.driver, {k: v for k, v in credential.items() if k not in aliases})
    host = _host(scene)
    environment = {**NO_HOST_ROLE.get(scene.driver, {})} | _inherited(scene.view, passed) | variables | host.environment
    download = _download(scene, node_driver, host.host)
    state = names.state_secret(scene.name)
    if not removes and scene.machine is not None:
        _check_bootstrap_data(scene, scene.machine)
    if removes:
        words = remove_arguments(
            download=download, namespace=scene.namespace, state=state, instance=names.instance_name(scene.name)
        )
    else:
        words = _creation(scene, download, state, fields)
    return Work(
        infra=scene.infra,
        kind=scene.kind,
        driver=scene.driver,
        machine_name=scene.machine_name,
        removes=removes,
        image=scene.view.setting(_image(scene, node_driver)),
        pull_policy=scene.view.setting(settings.MACHINE_IMAGE_PULL_POLICY),
        download=download,
        arguments=words,
        environment=environment,
        files=files,
        bootstrap_secret="" if removes else bootstrap_secret(scene.machine),
        host=host.host,
    )


def _check_paths(scene: Scene, aliases: Mapping[str, str]) -> None:
    if field := file_of_the_host(spec_fields(scene.infra), aliases):
        advice = f"list it in annotation {known.FILE_ALIASES} of the NodeDriver, so that it takes the content of a file"
        raise Problem(f"spec.{field}: files of the host that runs Jobs are not used; {advice}")


def bootstrap_secret(machine: Object | None) -> str:
    return str((((machine or {}).get("spec") or {}).get("bootstrap") or {}).get("dataSecretName") or "")


def _creation(scene: Scene, download: Download, state: str, fields: Mapping[str, object]) -> list[str]:
    placed = in_zone(scene.driver, fields, ((scene.machine or {}).get("spec") or {}).get("failureDomain") or "")
    limit = annotations_of(scene.infra).get(names.HOSTNAME_LIMIT)
    if limit is None and scene.machine is not None:
        limit = annotations_of(scene.machine).get(names.HOSTNAME_LIMIT)
    return create_arguments(
        download=download,
        namespace=scene.namespace,
        state=state,
        driver=scene.driver,
        instance=names.instance_name(scene.name),
        hostname=names.hostname(scene.name, limit),
        flags=driver_flags(scene.driver, placed, cluster=_cluster_name(scene)),
    )


def _cluster_name(scene: Scene) -> str:
    if scene.cluster is None:
        return ""
    return annotations_of(scene.cluster).get(MANAGEMENT_CLUSTER) or str(scene.cluster["metadata"]["name"])


# --- the driver -----------------------------------------------------------------------------------------------------


def find_node_driver(view: View, driver: str) -> Object | None:
    """Mostly of the driver's own name; a NodeDriver that people add may have any."""
    named = view.get(NODE_DRIVER, driver)
    if named is not None and known.driver_name(named) == driver:
        return named
    return next((found for found in view.select(NODE_DRIVER) if known.driver_name(found) == driver), None)


def _download(scene: Scene, node_driver: Object | None, host: Host | None) -> Download:
    """Of a NodeDriver that is gone, what was written down when the machine was created.

    Admission does not see who writes the status, so a program that it names never runs on the manager's host.
    """
    if node_driver is None and scene.driver in known.NATIVE_DRIVERS:
        return Download()
    if node_driver is None and host is not None:
        raise Problem(f"there is no NodeDriver for driver {scene.driver}; create it again to remove the machine")
    if node_driver is None:
        return Download(scene.status.get("driverUrl") or "", scene.status.get("driverHash") or "")
    if known.is_built_in(node_driver):
        return Download()
    return Download(node_driver["spec"].get("url") or "", node_driver["spec"].get("checksum") or "")


def _image(scene: Scene, node_driver: Object | None) -> str:
    """The name of the setting that says it."""
    if node_driver is not None:
        program = known.program_of(node_driver)
    else:
        program = known.OWN_PROGRAM if scene.driver in known.NATIVE_DRIVERS else known.GO_PROGRAM
    return settings.MACHINE_IMAGE if program == known.OWN_PROGRAM else settings.RANCHER_MACHINE_IMAGE


# --- the environment ------------------------------------------------------------------------------------------------


def _inherited(view: View, passed: Mapping[str, str]) -> dict[str, str]:
    wanted = known.listed(view.setting(settings.PASSED_VARIABLES))
    return {name: passed[name] for name in wanted if name in passed}


def _credential(scene: Scene, node_driver: Object | None, *, removes: bool) -> dict[str, str]:
    """Its fields. Those that the driver takes as files, such as SSH keys, may stand here rather than in the spec.

    A field that the driver does not take keeps no machine from being removed.
    """
    place = credentials.place_of(scene.infra)
    if place is None:
        return {}
    credentials.check_place(place, scene.infra)
    _check_approved(scene.view, scene.infra, CREDENTIAL, place)
    secret, pending = read(scene, place)
    if pending is not None:
        raise Pending(pending)
    if secret is None:
        raise Problem(
            f"spec.common.cloudCredentialSecretName: Secret {place} does not exist; create it, "
            f"with type {credentials.CREDENTIAL_TYPE}"
        )
    fields = credentials.fields_of(secret, scene.driver)
    declaring = [each for each in (node_driver, shipped(scene.driver)) if each is not None]
    if declaring:
        usable = frozenset().union(*map(known.usable_credential_fields, declaring))
        fields = credentials.usable(place, fields, usable, scene.driver, strict=not removes)
    if node_driver is not None:
        wanted = known.credential_fields(node_driver)
        fields = {**wanted.defaults, **fields}
        credentials.check_fields(place, fields, wanted.required, scene.driver)
    return fields


def _check_bootstrap_data(scene: Scene, machine: Object) -> None:
    """The machine can read it, so it must be the Machine's own, or be approved."""
    data, config = bootstrap_secret(machine), (machine["spec"].get("bootstrap") or {}).get("configRef") or {}
    # The core copies the name from the status of the bootstrap object, and admission does not see who writes that.
    if config.get("kind") == BOOTSTRAP.kind and data != rke_names.bootstrap_secret(config["name"]):
        raise Problem(
            f"{BOOTSTRAP_DATA}: Secret {data} is not that of RKEBootstrap {config['name']}; recreate the Machine"
        )
    place = Place(scene.namespace, data)
    found = scene.view.get(SECRET_METADATA, data, scene.namespace)
    if config and found is not None and not _is_owned(found, config) and not _is_users(machine, place):
        raise Problem(
            f"{BOOTSTRAP_DATA}: Secret {place} does not belong to {config['kind']} {config['name']}; it needs a "
            "controlling owner reference to it"
        )
    _check_approved(scene.view, machine, BOOTSTRAP_DATA, place)


def _is_owned(secret: Object, config: Object) -> bool:
    """Whether the bootstrap object controls the Secret, as the contract of bootstrap providers requires."""
    wanted = reference_group(config), config["kind"], config["name"]
    owners = [each for each in secret["metadata"].get("ownerReferences") or () if each.get("controller")]
    return any((each["apiVersion"].rpartition("/")[0], each["kind"], each["name"]) == wanted for each in owners)


def _is_users(machine: Object, place: Place) -> bool:
    """Whether a user named the Secret, who had to be allowed to read it. The manager's own approvals have no author."""
    key = BOOTSTRAP_DATA, Target(*SECRETS, *place)
    return any(each.author and each.key == key for each in recorded(machine) or ())


def _check_approved(view: View, obj: Object, path: str, place: Place) -> None:
    found = view.get(SECRET_METADATA, place.name, place.namespace)
    if found is not None and (why := problem(obj, path, Target(*SECRETS, *place), found["metadata"]["uid"])):
        raise Problem(f"{path}: {why}")


# --- the host -------------------------------------------------------------------------------------------------------


class _HostFound(NamedTuple):
    host: Host | None
    environment: dict[str, str]


def _host(scene: Scene) -> _HostFound:
    """Where one of our runners is, it runs the Jobs; those for machines of its host may use the daemon there."""
    hosted = scene.driver in hosts.HOSTED_DRIVERS
    if scene.view.get(SECRET_METADATA, hosts.HOST_SECRET, hosts.HOST_NAMESPACE) is None:
        if hosted:
            raise Problem(
                f"machines of driver {scene.driver} belong to a host, and none has told of its daemon: "
                "start `herder up`, or `herder run` with the runner, on the host that is to have them"
            )
        return _HostFound(None, {})
    secret, pending = read(scene, Place(hosts.HOST_NAMESPACE, hosts.HOST_SECRET))
    if pending is not None:
        raise Pending(pending)
    values = texts(secret or {})
    node, directory = values.get(hosts.HOST_NODE, ""), values.get(hosts.HOST_DIRECTORY, "")
    if secret is None or not node or not directory or hosts.HOST_KEY not in secret["data"]:
        where = f"{hosts.HOST_NAMESPACE}/{hosts.HOST_SECRET}"
        raise Problem(f"Secret {where} does not tell of a host's daemon; start `herder up` on the host again")
    approval_key = hosts.approval_key(base64.b64decode(secret["data"][hosts.HOST_KEY]))
    if not hosted:
        return _HostFound(Host(node="", approval_key=approval_key), {})
    host = Host(node, directory, approval_key)
    return _HostFound(host, {hosts.CREDENTIAL_VARIABLE: _host_credential(scene, secret)})


def _host_credential(scene: Scene, secret: Object) -> str:
    key = base64.b64decode(secret["data"][hosts.HOST_KEY])
    return hosts.machine_credential(key, scene.namespace, names.instance_name(scene.name))
