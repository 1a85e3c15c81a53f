"""What all plans of a cluster are made of, gathered from the objects that say it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from herder.api import settings
from herder.api.capi.kinds import SECRET_METADATA
from herder.api.management import names as management
from herder.api.management.commands import ca_checksum
from herder.api.management.manifest import Agent
from herder.api.management.registration import read as registration_tokens
from herder.api.references.approvals import problem_with
from herder.api.references.catalogue import Target
from herder.api.rke import names
from herder.api.rke.kinds import TOKENS_SECRET
from herder.controllers.planner.distributions.interface import (
    Authority,
    ClusterInputs,
    ConfigError,
    Distribution,
    Reference,
    Referenced,
)
from herder.controllers.planner.distributions.rancher.text import as_text
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Effect
from herder.engine.runtime.view import View

CONFIG_MAP_METADATA = Kind("", "v1", "ConfigMap", "configmaps").metadata_only()
_KINDS = {"Secret": SECRET_METADATA, "ConfigMap": CONFIG_MAP_METADATA}

NOT_RENDERED = (
    "upgradeStrategy",
    "rotateCertificates",
    "rotateEncryptionKeys",
    "etcdSnapshotCreate",
    "etcdSnapshotRestore",
    "controlPlaneEndpoint",
)
"""Of the spec: what says how and when plans are carried out, and never what is in them."""


class Lacking(Exception):
    """Something that plans are made of is not there yet: in words, and by whom it is brought."""

    def __init__(self, message: str, effects: tuple[Effect, ...] = ()) -> None:
        super().__init__(message)
        self.effects = effects


def cluster_inputs(
    view: View,
    control_plane: Object,
    distribution: Distribution,
    *,
    begun: bool,
    servers: Sequence[str] = (),
    comes_first: bool = False,
) -> ClusterInputs:
    """`begun`: machines have plans, so what they joined with must be there and is not made again. `servers`: how those
    of the control plane are joined. `comes_first`: the cluster's agent is wanted in it before anything else is."""
    spec: Object = control_plane["spec"]
    name, namespace = view.name, view.namespace
    server_token, agent_token = _tokens(view, control_plane, begun)
    wanted = needs(control_plane, distribution)
    for purpose in distribution.authorities:
        authority = view.get(SECRET_METADATA, names.authority_secret(name, purpose))
        if authority is not None:
            _check_own(authority, control_plane)
    _check_approved(view, control_plane, distribution)
    contents = _contents(view, wanted)
    authorities = _authorities(contents, control_plane, distribution, begun)
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
        agent=_agent(view.setting, spec, contents, comes_first),
        server_certificates=view.setting(settings.SERVER_CERTIFICATES),
        installer_image=view.setting(settings.INSTALLER_IMAGE),
        default_registry=view.setting(settings.DEFAULT_REGISTRY),
        prime=view.setting(settings.RKE2_PRIME_DEFAULT) == "true",
        referenced={reference: found for reference, found in referenced.items() if found is not None},
        servers=tuple(sorted(servers)) if distribution.names_servers else (),
    )


def needs(control_plane: Object, distribution: Distribution) -> list[Reference]:
    """Every Secret and ConfigMap whose content goes into plans, but for the tokens."""
    spec, meta = control_plane["spec"], control_plane["metadata"]
    found = [*distribution.references(spec, meta["namespace"])]
    found += [
        Reference("Secret", meta["namespace"], names.authority_secret(meta["name"], purpose))
        for purpose in distribution.authorities
    ]
    if registration := _registration(spec):
        found.append(registration)
    return found


def _check_approved(view: View, control_plane: Object, distribution: Distribution) -> None:
    """Nothing is read that the author of the reference may not read, or that replaced what was approved."""
    for reference in distribution.references(control_plane["spec"], view.namespace):
        there = view.get(_KINDS[reference.kind], reference.name, reference.namespace)
        if there is None:
            continue
        target = Target("", _KINDS[reference.kind].plural, reference.namespace, reference.name)
        if why := problem_with(control_plane, target, there["metadata"]["uid"]):
            raise Lacking(why)


def _registration(spec: Mapping[str, Any]) -> Reference | None:
    """The Secret with the token that the cluster's agent registers with."""
    cluster = spec.get("managementClusterName")
    return Reference("Secret", cluster, management.token_secret(management.DEFAULT_TOKEN)) if cluster else None


def _tokens(view: View, control_plane: Object, begun: bool) -> tuple[str, str]:
    name = names.tokens_secret(view.name)
    secret = view.get(TOKENS_SECRET, name)
    if secret is None and begun:
        raise ConfigError(
            f"Secret {view.namespace}/{name} does not exist, but machines have joined with what is in it: restore it "
            "from a backup, since no machine can join or be changed without"
        )
    if secret is None:
        meta = control_plane["metadata"]
        arguments = {"namespace": view.namespace, "name": name, "owner": _owner(control_plane)}
        key = (names.MAKE_TOKENS, meta["uid"])
        effect = Effect(names.MAKE_TOKENS, key, arguments, "what machines join with", repeat=True)
        raise Lacking("waiting for the tokens that machines join with", (effect,))
    _check_own(secret, control_plane)
    data = secret.get("data") or {}
    where = f"Secret {view.namespace}/{name}"
    return _text(data.get("serverToken"), where), _text(data.get("agentToken"), where)


def _check_own(secret: Object, control_plane: Object) -> None:
    """Two clusters can come to the same name for their Secrets: one after the other, or by a long name, which is cut
    and distinguished by a short hash. The owner of either cluster knows what is in it."""
    meta, owners = secret["metadata"], secret["metadata"].get("ownerReferences") or ()
    planes = [each["uid"] for each in owners if each["kind"] == control_plane["kind"]]
    if planes and control_plane["metadata"]["uid"] not in planes:
        reason = "belongs to another cluster; wait until it is deleted, or rename this cluster"
        raise Lacking(f"Secret {meta['namespace']}/{meta['name']} {reason}")


def _contents(view: View, wanted: list[Reference]) -> dict[Reference, Referenced | None]:
    """What the references name, as of their present revision; None for what does not exist."""
    found: dict[Reference, Referenced | None] = {}
    reading: list[Effect] = []
    for reference in wanted:
        there = view.get(_KINDS[reference.kind], reference.name, reference.namespace)
        if there is None:
            found[reference] = None
            continue
        effect = _read(reference, there["metadata"])
        result = view.result(effect.key)
        if result is None or not result.done:
            reading.append(effect)
        elif _is_another(result.value, there):
            raise Lacking(f"{reference.kind} {reference.namespace}/{reference.name} was recreated while it was read")
        else:
            found[reference] = _referenced(result.value)
    if reading:
        raise Lacking(
            f"waiting for {reading[0].arguments['kind']} {reading[0].arguments['name']} to be read", (*reading,)
        )
    return found


def _is_another(read: Object | None, there: Object) -> bool:
    """What was read by its name may be newer than what is seen here, and another user's."""
    return read is not None and read["metadata"]["uid"] != there["metadata"]["uid"]


def _read(reference: Reference, meta: Object) -> Effect:
    key = (names.READ_OBJECT, *reference, meta["uid"], meta["resourceVersion"])
    return Effect(names.READ_OBJECT, key, reference._asdict(), "a plan is made of it")


def _referenced(obj: Object | None) -> Referenced | None:
    if obj is None:
        return None
    encoded = (obj.get("data") or {}) if obj.get("kind") == "Secret" else (obj.get("binaryData") or {})
    data = {key: _decoded(value) for key, value in encoded.items()}
    if obj.get("kind") != "Secret":
        data |= {key: str(value).encode() for key, value in (obj.get("data") or {}).items()}
    return Referenced(obj["metadata"].get("annotations") or {}, data, obj.get("type", ""))


def _authorities(
    contents: Mapping[Reference, Referenced | None], control_plane: Object, distribution: Distribution, begun: bool
) -> dict[str, Authority]:
    meta = control_plane["metadata"]
    found: dict[str, Authority] = {}
    for purpose in distribution.authorities:
        name = names.authority_secret(meta["name"], purpose)
        secret = contents[Reference("Secret", meta["namespace"], name)]
        if secret is None and begun:
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
            reason = "what the cluster's certificates are signed with"
            effect = Effect(names.MAKE_AUTHORITIES, key, arguments, reason, repeat=True)
            raise Lacking("waiting for the cluster's certificate authorities", (effect,))
        where = f"Secret {meta['namespace']}/{name}"
        parts = (as_text(secret.data.get(part, b""), where) for part in ("tls.crt", "tls.key"))
        found[purpose] = Authority(*parts)
    return found


def _owner(control_plane: Object) -> Object:
    meta = control_plane["metadata"]
    named = {"apiVersion": control_plane["apiVersion"], "kind": control_plane["kind"]}
    return named | {"name": meta["name"], "uid": meta["uid"]}


def _agent(
    setting: Callable[[str], str], spec: Object, contents: Mapping[Reference, Referenced | None], comes_first: bool
) -> Agent | None:
    registration = _registration(spec)
    secret = contents[registration] if registration else None
    if registration is not None and secret is None:
        raise Lacking(f"waiting for the token that the cluster's agent registers with, in {registration}")
    url = setting(settings.SERVER_URL).rstrip("/")
    if secret is None:
        return None
    if not url:
        raise Lacking("setting server-url: not set, so the cluster's agent cannot be told where to connect to")
    tokens = registration_tokens({"data": {key: _encoded(value) for key, value in secret.data.items()}})
    if tokens is None:
        raise Lacking(f"waiting for the token that the cluster's agent registers with, in {registration}")
    return Agent(
        server_url=url,
        token=tokens.token,
        ca_checksum=ca_checksum(setting(settings.SERVER_CERTIFICATES)),
        image=setting(settings.AGENT_IMAGE),
        strict=setting(settings.AGENT_TLS_MODE) == "strict",
        environment=spec.get("agentEnvVars") or (),
        comes_first=comes_first,
    )


def _decoded(value: object) -> bytes:
    return base64.b64decode(str(value or ""))


def _text(value: object, where: str) -> str:
    return as_text(_decoded(value), where)


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()
