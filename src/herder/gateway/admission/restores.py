"""Requests to restore a snapshot together with the version or configuration of its time.

Admission replaces the fields in the same write, on behalf of its author. So all later rules see the restored spec: the
author needs rights on what it references, as if the author had written every field. Unlike in a field that the author
has written, the name must still be that of an object that the cluster was allowed to reference.
"""

from __future__ import annotations

from dataclasses import replace

from herder.api.capi.admission.values import section, text
from herder.api.capi.names import annotations_of
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.references.approvals import REVIEW
from herder.api.references.catalogue import field_references
from herder.api.rke.etcd import restore
from herder.api.rke.kinds import CONTROL_PLANE, ETCD_SNAPSHOT
from herder.api.rke.operations import RESTORE
from herder.engine.client.client import Client
from herder.engine.meta import names
from herder.engine.meta.errors import NotFound, invalid, invalid_value
from herder.engine.meta.kinds import Kind, Object
from herder.gateway.admission.references import Restored, Write

_PATH = f"spec.rkeConfig.{RESTORE}"


class RestoreAdmission:
    """Applies `restoreRKEConfig`. Reads snapshots with the rights of the manager."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def admit(self, write: Write) -> Write:
        """Return the write with the restored fields; raises Invalid if the snapshot cannot be restored like that."""
        if write.kind != PROVISIONING_CLUSTER.group_kind or write.old is None:
            return write  # a new cluster has no snapshots
        request, before = (section(each, "spec", "rkeConfig", RESTORE) for each in (write.obj, write.old))
        if request == before or not restore.restores_spec(request):
            return write
        name = text(request, "name")
        snapshot = await self._read(ETCD_SNAPSHOT, write.namespace, name)
        if snapshot is None or text(snapshot, "spec", "clusterName") != write.name:
            raise _refused(write, "name", name, "this cluster has no such snapshot")
        control_plane = await self._read(CONTROL_PLANE, write.namespace, write.name)
        mode = restore.mode_of(request)
        try:
            saved = restore.saved_spec(snapshot, control_plane)
        except restore.CannotRestore as error:
            raise _refused(write, "restoreRKEConfig", mode, str(error)) from None
        current, then = text(write.old, "spec", "kubernetesVersion"), text(saved, "kubernetesVersion")
        if problem := restore.version_problem(current, then):
            raise _refused(write, "restoreRKEConfig", mode, problem)
        spec = restore.restored_spec(write.obj["spec"], saved, mode)
        restored = replace(write, obj={**write.obj, "spec": spec})
        return replace(restored, restored=_added_references(write, restored, control_plane))

    async def _read(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """The client does not encode names: others could change the path of its request."""
        if names.dns1123_subdomain(name):
            return None
        try:
            return await self._client.get(kind.resource, name, namespace=namespace)
        except NotFound:
            return None


def _added_references(write: Write, restored: Write, control_plane: Object | None) -> Restored | None:
    """References of the restored spec that the author has not written; None if the author requests their review."""
    assert write.old is not None
    review = annotations_of(write.obj).get(REVIEW)
    if review and review != annotations_of(write.old).get(
        REVIEW
    ):  # removed by who replaces the object, it is no request
        return None
    written, found = (
        {each.key for each in field_references(each.kind, each.obj, each.namespace)} for each in (write, restored)
    )
    return Restored(frozenset(found - written), frozenset(restore.approved_objects(control_plane)))


def _refused(write: Write, field: str, value: str, why: str) -> Exception:
    return invalid(write.kind, write.name, [invalid_value(f"{_PATH}.{field}", value, why)])
