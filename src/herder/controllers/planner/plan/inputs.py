"""Cluster-wide inputs of plans: spec, settings, tokens, certificate authorities and referenced Secrets.

Every referenced object is checked before it is read: it must belong to this cluster, or its reference must be approved.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from herder.api import settings
from herder.api.capi.kinds import SECRET_METADATA
from herder.api.management import names as management
from herder.api.management.clusters import AGENT_CUSTOMIZATION
from herder.api.management.commands import ca_checksum
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.manifest import Agent
from herder.api.management.registration import read_tokens as registration_tokens
from herder.api.references.approvals import problem_with, recreated
from herder.api.references.catalogue import Target
from herder.api.rke import names, operations
from herder.api.rke.etcd.encryption import BEFORE, MAKE_KEY, KeyState, data_key, generation_of, keys_secret, needed_by
from herder.api.rke.kinds import ETCD_SNAPSHOT, TOKENS_SECRET
from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.operations import active_run
from herder.controllers.planner.distributions.interface import (
    Authority,
    ClusterInputs,
    Distribution,
    EncryptionKeys,
    Reference,
    Referenced,
)
from herder.controllers.planner.distributions.rancher.text import as_text
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Effect
from herder.engine.runtime.view import View

CONFIG_MAP_METADATA = Kind("", "v1", "ConfigMap", "configmaps").metadata_only()
_KINDS = {"Secret": SECRET_METADATA, "ConfigMap": CONFIG_MAP_METADATA}

NOT_RENDERED = ("upgradeStrategy", *operations.KINDS, "controlPlaneEndpoint")
"""Fields of the spec that control how plans are rolled out. They are no inputs: no plan contains them."""


class InputsNotReady(Exception):
    """An input of plans does not exist yet. `effects` create or read it."""

    def __init__(self, message: str, effects: tuple[Effect, ...] = ()) -> None:
        super().__init__(message)
        self.effects = effects


def cluster_inputs(
    view: View,
    control_plane: Object,
    distribution: Distribution,
    *,
    has_plans: bool,
    servers: Sequence[str] = (),
    pre_bootstrap: bool = False,
) -> ClusterInputs:
    """Collect the inputs that all machines of a cluster share.

    `has_plans`: machines have plans already, so tokens and certificate authorities must exist and are never created
    again. `servers`: join URLs of the control plane machines. `pre_bootstrap`: deploy only the cluster agent until the
    cluster has its pre-bootstrap Secrets. Raises InputsNotReady or ConfigError.
    """
    spec: Object = control_plane["spec"]
    name, namespace = view.name, view.namespace
    server_token, agent_token = _tokens(view, control_plane, has_plans)
    references = needs(control_plane, distribution)
    for purpose in distribution.authorities:
        authority = view.get(SECRET_METADATA, names.authority_secret(name, purpose))
        if authority is not None:
            _check_owner(authority, control_plane)
            _check_created_for(authority, control_plane)
    keys = view.get(SECRET_METADATA, keys_secret(name)) if distribution.manages_keys else None
    if keys is not None and not (has_plans and KeyState.of(control_plane) is None):
        _check_created_for(keys, control_plane)
    _check_approved(view, control_plane, distribution)
    contents = _read_references(view, references)
    authorities = _authorities(contents, control_plane, distribution, has_plans)
    encryption = _encryption(view, contents, control_plane, distribution, has_plans)
    status = control_plane.get("status") or {}
    annotations = control_plane["metadata"].get("annotations") or {}
    referenced = {reference: contents[reference] for reference in distribution.references(spec, namespace)}
    return ClusterInputs(
        namespace=namespace,
        name=name,
        management_name=spec.get("managementClusterName", ""),
        version=spec.get("kubernetesVersion", ""),
        spec={part: value for part, value in spec.items() if part not in NOT_RENDERED},
        annotations={key: annotations[key] for key in (names.CLUSTER_SPEC, names.RKE2_PRIME) if key in annotations},
        config_generation=int(status.get("configGeneration") or 0),
        initialized=bool((status.get("initialization") or {}).get("controlPlaneInitialized")),
        server_token=server_token,
        agent_token=agent_token,
        authorities=authorities,
        agent=_agent(view, spec, contents, pre_bootstrap),
        server_certificates=view.setting(settings.SERVER_CERTIFICATES),
        installer_image=view.setting(settings.INSTALLER_IMAGE),
        default_registry=view.setting(settings.DEFAULT_REGISTRY),
        prime=view.setting(settings.RKE2_PRIME_DEFAULT) == "true",
        referenced={reference: found for reference, found in referenced.items() if found is not None},
        servers=tuple(sorted(servers)) if distribution.names_servers else (),
        encryption=encryption,
    )


def needs(control_plane: Object, distribution: Distribution) -> list[Reference]:
    """References to every Secret and ConfigMap whose content is part of plans, except the token Secret."""
    spec, meta = control_plane["spec"], control_plane["metadata"]
    found = [*distribution.references(spec, meta["namespace"])]
    found += [
        Reference("Secret", meta["namespace"], names.authority_secret(meta["name"], purpose))
        for purpose in distribution.authorities
    ]
    if distribution.manages_keys:
        found.append(Reference("Secret", meta["namespace"], keys_secret(meta["name"])))
    if registration := _registration(spec):
        found.append(registration)
    return found


def _check_approved(view: View, control_plane: Object, distribution: Distribution) -> None:
    """Refuse references that their author may not read, and objects that replaced the approved ones."""
    for reference in distribution.references(control_plane["spec"], view.namespace):
        found_metadata = view.get(_KINDS[reference.kind], reference.name, reference.namespace)
        if found_metadata is None:
            continue
        target = Target("", _KINDS[reference.kind].plural, reference.namespace, reference.name)
        if why := problem_with(control_plane, target, found_metadata["metadata"]["uid"]):
            raise InputsNotReady(why)
    _check_management(view, control_plane)


def _check_management(view: View, control_plane: Object) -> None:
    """Refuse a recreated management Cluster: machines would get the registration token of another user's cluster."""
    name = control_plane["spec"].get("managementClusterName") or ""
    found = view.get(MANAGEMENT_CLUSTER, name)
    target = Target(MANAGEMENT_CLUSTER.group, MANAGEMENT_CLUSTER.plural, "", name)
    if found and (why := recreated(control_plane, "spec.managementClusterName", target, found["metadata"]["uid"])):
        raise InputsNotReady(why)


def _registration(spec: Mapping[str, Any]) -> Reference | None:
    """The Secret with the token that the cluster's agent registers with."""
    cluster = spec.get("managementClusterName")
    return Reference("Secret", cluster, management.token_secret(management.DEFAULT_TOKEN)) if cluster else None


def _tokens(view: View, control_plane: Object, has_plans: bool) -> tuple[str, str]:
    name = names.tokens_secret(view.name)
    secret = view.get(TOKENS_SECRET, name)
    if secret is None and has_plans:
        raise ConfigError(
            f"Secret {view.namespace}/{name} does not exist, but machines have joined with what is in it: restore it "
            "from a backup, since no machine can join or be changed without"
        )
    if secret is None:
        meta = control_plane["metadata"]
        arguments = {"namespace": view.namespace, "name": name, "owner": _owner(control_plane)}
        key = (names.MAKE_TOKENS, meta["uid"])
        effect = Effect(names.MAKE_TOKENS, key, arguments, "join tokens of the cluster", repeat=True)
        raise InputsNotReady("waiting for the tokens that machines join with", (effect,))
    _check_owner(secret, control_plane)
    data = secret.get("data") or {}
    source = f"Secret {view.namespace}/{name}"
    return _text(data.get("serverToken"), source), _text(data.get("agentToken"), source)


def _check_owner(secret: Object, control_plane: Object) -> None:
    """Refuse the Secret of another cluster.

    Two clusters can have the same Secret name: one after the other, or with long names, which are shortened to a hash.
    Owners of either cluster know its content.
    """
    meta, owners = secret["metadata"], secret["metadata"].get("ownerReferences") or ()
    planes = [each["uid"] for each in owners if each["kind"] == control_plane["kind"]]
    if planes and control_plane["metadata"]["uid"] not in planes:
        reason = "belongs to another cluster; wait until it is deleted, or rename this cluster"
        raise InputsNotReady(f"Secret {meta['namespace']}/{meta['name']} {reason}")


def _check_created_for(authority: Object, control_plane: Object) -> None:
    """Use only a Secret that the manager created for this cluster.

    Users choose cluster names, and so the name of this Secret. Machines get the key in it, which could be any Secret of
    that name.
    """
    meta = authority["metadata"]
    if not owns(control_plane, authority):
        remedy = f"rename this cluster, or delete the Secret; restored, it needs {control_plane['kind']} as an owner"
        raise InputsNotReady(f"Secret {meta['namespace']}/{meta['name']} does not belong to this cluster; {remedy}")


def _read_references(view: View, references: list[Reference]) -> dict[Reference, Referenced | None]:
    """The current content of each reference; None for objects that do not exist."""
    found: dict[Reference, Referenced | None] = {}
    reading: list[Effect] = []
    for reference in references:
        found_metadata = view.get(_KINDS[reference.kind], reference.name, reference.namespace)
        if found_metadata is None:
            found[reference] = None
            continue
        effect = _read_effect(reference, found_metadata["metadata"])
        result = view.result(effect.key)
        if result is None or not result.done:
            reading.append(effect)
        elif _is_recreated(result.value, found_metadata):
            raise InputsNotReady(
                f"{reference.kind} {reference.namespace}/{reference.name} was recreated while it was read"
            )
        else:
            found[reference] = _referenced(result.value)
    if reading:
        raise InputsNotReady(
            f"waiting for {reading[0].arguments['kind']} {reading[0].arguments['name']} to be read", (*reading,)
        )
    return found


def _is_recreated(read: Object | None, found_metadata: Object) -> bool:
    """Whether the object was replaced between cache and read; the new one may be another user's."""
    return read is not None and read["metadata"]["uid"] != found_metadata["metadata"]["uid"]


def _read_effect(reference: Reference, meta: Object) -> Effect:
    key = (names.READ_OBJECT, *reference, meta["uid"], meta["resourceVersion"])
    return Effect(names.READ_OBJECT, key, reference._asdict(), "input of a plan")


def _referenced(obj: Object | None) -> Referenced | None:
    if obj is None:
        return None
    encoded = (obj.get("data") or {}) if obj.get("kind") == "Secret" else (obj.get("binaryData") or {})
    data = {key: _decoded(value) for key, value in encoded.items()}
    if obj.get("kind") != "Secret":
        data |= {key: str(value).encode() for key, value in (obj.get("data") or {}).items()}
    return Referenced(obj["metadata"].get("annotations") or {}, data, obj.get("type", ""))


def _authorities(
    contents: Mapping[Reference, Referenced | None], control_plane: Object, distribution: Distribution, has_plans: bool
) -> dict[str, Authority]:
    meta = control_plane["metadata"]
    found: dict[str, Authority] = {}
    for purpose in distribution.authorities:
        name = names.authority_secret(meta["name"], purpose)
        secret = contents[Reference("Secret", meta["namespace"], name)]
        if secret is None and has_plans:
            raise ConfigError(
                f"Secret {meta['namespace']}/{name} does not exist, but the cluster's certificates are signed with "
                "what was in it: restore it from a backup"
            )
        if secret is None:
            arguments = {
                "namespace": meta["namespace"],
                "cluster": meta["name"],
                "purposes": (*distribution.authorities,),
                "owner": _owner(control_plane),
            }
            key = (names.MAKE_AUTHORITIES, meta["uid"])
            reason = "certificate authorities of the cluster"
            effect = Effect(names.MAKE_AUTHORITIES, key, arguments, reason, repeat=True)
            raise InputsNotReady("waiting for the cluster's certificate authorities", (effect,))
        source = f"Secret {meta['namespace']}/{name}"
        parts = (as_text(secret.data.get(part, b""), source) for part in ("tls.crt", "tls.key"))
        found[purpose] = Authority(*parts)
    return found


def _encryption(
    view: View,
    contents: Mapping[Reference, Referenced | None],
    control_plane: Object,
    distribution: Distribution,
    has_plans: bool,
) -> EncryptionKeys | None:
    """Keys of the manager. A cluster that began without them gets them with its first rotation, and not before."""
    if not distribution.manages_keys:
        return None
    meta, state = control_plane["metadata"], KeyState.of(control_plane)
    name = keys_secret(meta["name"])
    secret = contents[Reference("Secret", meta["namespace"], name)]
    metadata = view.get(SECRET_METADATA, name)
    if state is None and (secret is None or metadata is None or not owns(control_plane, metadata)):
        if has_plans or distribution.keys_problem(control_plane["spec"]):
            return None
        raise InputsNotReady("waiting for the key that encrypts Secrets", (_make_key(control_plane, 1),))
    if problem := distribution.keys_problem(control_plane["spec"]):
        raise ConfigError(problem)
    data = (secret.data if secret is not None else {}).items()
    keys = {generation: as_text(key, f"Secret {name}") for each, key in data if (generation := generation_of(each))}
    loaded = (
        _keys_of_phase(view, control_plane, state).loaded if state is not None else tuple(sorted(keys, reverse=True))
    )
    missing = sorted(each for each in loaded if each != BEFORE and each not in keys)
    if missing:
        run = active_run(control_plane)
        adds_key = run is not None and (run.kind, run.phase) == (operations.ENCRYPTION_KEYS, "Prepare")
        if adds_key and missing == [max(loaded)]:
            raise InputsNotReady("waiting for the new key that encrypts Secrets", (_make_key(control_plane, *missing),))
        raise ConfigError(
            f"Secret {meta['namespace']}/{name} does not have {', '.join(map(data_key, missing))}, but Secrets of the "
            "cluster are encrypted with it: restore it from a backup"
        )
    return EncryptionKeys(loaded, {each: keys[each] for each in loaded if each != BEFORE})


def _keys_of_phase(view: View, control_plane: Object, state: KeyState) -> KeyState:
    """While a restore checks its snapshot, its leader has the keys that the snapshot needs beside those of the status.

    The status gets them with the phase in which servers load them.
    """
    run = active_run(control_plane)
    if run is None or (run.kind, run.phase) != (operations.RESTORE, operations.CHECK_PHASE):
        return state
    return state.with_keys(keys_of_snapshot(view, control_plane["spec"], state.stored))


def keys_of_snapshot(view: View, spec: Object, stored: Sequence[int]) -> set[int]:
    """Generations that the snapshot of the requested restore needs."""
    name = str((spec.get(operations.RESTORE) or {}).get("name") or "")
    found = view.get(ETCD_SNAPSHOT, name) if name else None
    # No object says which key a file without one needs.
    return needed_by([found], stored) if found is not None else set(stored)


def _make_key(control_plane: Object, generation: int) -> Effect:
    meta = control_plane["metadata"]
    arguments = {
        "namespace": meta["namespace"],
        "name": keys_secret(meta["name"]),
        "cluster": meta["name"],
        "owner": _owner(control_plane),
        "generation": generation,
    }
    return Effect(
        MAKE_KEY, (MAKE_KEY, meta["uid"], str(generation)), arguments, "a key that encrypts Secrets", repeat=True
    )


def owns(control_plane: Object, secret: Object) -> bool:
    owners = secret["metadata"].get("ownerReferences") or ()
    return any(each["uid"] == control_plane["metadata"]["uid"] for each in owners)


def _owner(control_plane: Object) -> Object:
    meta = control_plane["metadata"]
    named = {"apiVersion": control_plane["apiVersion"], "kind": control_plane["kind"]}
    return named | {"name": meta["name"], "uid": meta["uid"]}


def _agent(
    view: View, spec: Object, contents: Mapping[Reference, Referenced | None], pre_bootstrap: bool
) -> Agent | None:
    registration, setting = _registration(spec), view.setting
    secret = contents[registration] if registration else None
    if registration is not None and secret is None:
        raise InputsNotReady(f"waiting for the token that the cluster's agent registers with, in {registration}")
    url = setting(settings.SERVER_URL).rstrip("/")
    if secret is None:
        return None
    if not url:
        raise InputsNotReady(
            "setting server-url: not set, so the cluster agent cannot connect; set it to the URL of this server"
        )
    tokens = registration_tokens({"data": {key: _encoded(value) for key, value in secret.data.items()}})
    if tokens is None:
        raise InputsNotReady(f"waiting for the token that the cluster's agent registers with, in {registration}")
    return Agent(
        server_url=url,
        token=tokens.token,
        ca_checksum=ca_checksum(setting(settings.SERVER_CERTIFICATES)),
        image=setting(settings.AGENT_IMAGE),
        strict=setting(settings.AGENT_TLS_MODE) == "strict",
        environment=spec.get("agentEnvVars") or (),
        pre_bootstrap=pre_bootstrap,
        customization=agent_customization(view.get(MANAGEMENT_CLUSTER, spec["managementClusterName"])),
    )


def agent_customization(management_cluster: Object | None) -> Object:
    """How the user customizes the Deployment of the cluster agent; imported clusters have the same field."""
    return ((management_cluster or {}).get("spec") or {}).get(AGENT_CUSTOMIZATION) or {}


def _decoded(value: object) -> bytes:
    return base64.b64decode(str(value or ""))


def _text(value: object, source: str) -> str:
    return as_text(_decoded(value), source)


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()
