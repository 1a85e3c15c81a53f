"""ServiceAccount admission: set a pod's service account and mount its token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from herder.engine.apiserver.admission.chain import CREATE, UPDATE, Attributes, denied_by_plugin, metadata
from herder.engine.apiserver.admission.objects import PODS, SERVICE_ACCOUNTS, Objects
from herder.engine.meta.kinds import GroupResource, Object

DEFAULT = "default"
MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
VOLUME_PREFIX = "kube-api-access-"
_MIRROR = "kubernetes.io/config.mirror"
_MOUNTABLE_ONLY = "kubernetes.io/enforce-mountable-secrets"
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
# A controller creates the default account of a new namespace; pods created right after the namespace wait for it.
_ATTEMPTS, _PAUSE = 10, 0.1


class ServiceAccountAdmission:
    """The ServiceAccount admission plugin."""

    name = "ServiceAccount"
    operations = frozenset({CREATE, UPDATE})
    resources: frozenset[GroupResource] | None = frozenset({PODS})
    subresources: frozenset[str] | None = frozenset({"", "ephemeralcontainers"})

    def __init__(self, objects: Objects, entropy: Callable[[int], bytes]) -> None:
        self._objects = objects
        self._entropy = entropy

    async def admit(self, attributes: Attributes) -> None:
        if attributes.operation != CREATE or attributes.subresource or attributes.obj is None:
            return
        pod = attributes.obj
        if not _is_mirror(pod):
            spec = pod.setdefault("spec", {})
            if not spec.get("serviceAccountName"):
                spec["serviceAccountName"] = DEFAULT
            spec["serviceAccount"] = spec["serviceAccountName"]  # deprecated alias of the same field
            account = await self._find_account(attributes, spec["serviceAccountName"])
            if _automounts(account, spec):
                self._mount_token(spec)
            if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
                spec["imagePullSecrets"] = [{"name": item.get("name")} for item in account["imagePullSecrets"]]
        await self.validate(attributes)

    async def validate(self, attributes: Attributes) -> None:
        pod = attributes.obj
        if pod is None or (attributes.operation == UPDATE and attributes.subresource != "ephemeralcontainers"):
            return
        if _is_mirror(pod):
            self._check_mirror(attributes, pod)
            return
        spec = pod.get("spec") or {}
        name = spec.get("serviceAccountName")
        if not name:
            where = f"{attributes.namespace}/{metadata(pod).get('name', '')}"
            raise denied_by_plugin(attributes, f"no service account specified for pod {where}")
        account = await self._find_account(attributes, name)
        if (metadata(account).get("annotations") or {}).get(_MOUNTABLE_ONLY) in _TRUE:
            problem = next(_unmountable(account, spec), None)
            if problem:
                raise denied_by_plugin(attributes, problem)

    async def _find_account(self, attributes: Attributes, name: str) -> Object:
        for attempt in range(_ATTEMPTS if name == DEFAULT else 1):
            if attempt:
                await asyncio.sleep(_PAUSE)
            account = self._objects.get(SERVICE_ACCOUNTS, attributes.namespace, name)
            if account is not None:
                return account
        where = f"{attributes.namespace}/{name}"
        raise denied_by_plugin(
            attributes, f'error looking up service account {where}: serviceaccount "{name}" not found'
        )

    def _check_mirror(self, attributes: Attributes, pod: Object) -> None:
        spec = pod.get("spec") or {}
        if spec.get("serviceAccountName"):
            raise denied_by_plugin(attributes, "a mirror pod may not reference service accounts")
        if next(_secret_references(spec), None):
            raise denied_by_plugin(attributes, "a mirror pod may not reference secrets")
        for volume in spec.get("volumes") or ():
            for source in (volume.get("projected") or {}).get("sources") or ():
                if source.get("serviceAccountToken"):
                    raise denied_by_plugin(
                        attributes, "a mirror pod may not use ServiceAccountToken volume projections"
                    )

    def _mount_token(self, spec: Object) -> None:
        volumes = spec.get("volumes") or []
        existing = next((v["name"] for v in volumes if str(v.get("name")).startswith(VOLUME_PREFIX)), None)
        volume_name = existing or VOLUME_PREFIX + self._suffix()
        mounted = False
        for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
            mounts = container.get("volumeMounts") or []
            if any(mount.get("mountPath") == MOUNT_PATH for mount in mounts):
                continue
            container["volumeMounts"] = [*mounts, {"name": volume_name, "readOnly": True, "mountPath": MOUNT_PATH}]
            mounted = True
        if mounted and existing is None:
            spec["volumes"] = [*volumes, {"name": volume_name, "projected": _token_sources()}]

    def _suffix(self) -> str:
        return "".join(_SUFFIX_LETTERS[byte % len(_SUFFIX_LETTERS)] for byte in self._entropy(5))


def _token_sources() -> Object:
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    return {
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [namespace]}},
        ],
        "defaultMode": 420,
    }


def _is_mirror(pod: Object) -> bool:
    return _MIRROR in (metadata(pod).get("annotations") or {})


def _automounts(account: Object, spec: Object) -> bool:
    for holder in (spec, account):
        automount = holder.get("automountServiceAccountToken")
        if automount is not None:
            return bool(automount)
    return True


_CONTAINERS = (("initContainers", "init container"), ("containers", "container"), (
    "ephemeralContainers", "ephemeral container"))  # fmt: skip


def _secret_references(spec: Object) -> Iterator[tuple[str, str]]:
    """Yield the Secrets that a pod uses, each with a description of the reference."""
    for volume in spec.get("volumes") or ():
        name = (volume.get("secret") or {}).get("secretName")
        if name:
            yield name, f'volume with secret.secretName="{name}"'
    for field, description in _CONTAINERS:
        for container in spec.get(field) or ():
            yield from _container_references(container, f"{description} {container.get('name')}")


def _container_references(container: Any, message: str) -> Iterator[tuple[str, str]]:
    for variable in container.get("env") or ():
        name = ((variable.get("valueFrom") or {}).get("secretKeyRef") or {}).get("name")
        if name:
            yield name, f'{message} with envVar {variable.get("name")} referencing secret.secretName="{name}"'
    for source in container.get("envFrom") or ():
        name = (source.get("secretRef") or {}).get("name")
        if name:
            yield name, f'{message} with envFrom referencing secret.secretName="{name}"'


def _unmountable(account: Object, spec: Object) -> Iterator[str]:
    own = metadata(account).get("name")
    allowed = {item.get("name") for item in account.get("secrets") or ()}
    for name, description in _secret_references(spec):
        if name not in allowed:
            yield f"{description} is not allowed because service account {own} does not reference that secret"
    pull = {item.get("name") for item in account.get("imagePullSecrets") or ()}
    for position, item in enumerate(spec.get("imagePullSecrets") or ()):
        if item.get("name") not in pull:
            yield (
                f'imagePullSecrets[{position}].name="{item.get("name")}" is not allowed because service account {own} '
                "does not reference that imagePullSecret"
            )
