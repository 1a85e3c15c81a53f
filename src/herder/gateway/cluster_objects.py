"""Access of users to the objects of their own clusters.

Machines and their owners have generated names and share a namespace with those of other clusters. RBAC can grant them
only all together or name by name, so the gateway reads them, and deletes snapshots, for users with rights on the
Cluster.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from herder.api.capi.contract import definition_name, external_kind, reference_group
from herder.api.capi.core import CRD
from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_POOL, MACHINE_SET, SECRET
from herder.api.capi.names import CLUSTER_NAME, annotations_of, is_deleting
from herder.api.machines.archive import CONFIG_MAP
from herder.api.machines.credentials import CREATOR
from herder.api.machines.kinds import MACHINE_GROUP
from herder.api.machines.names import ARCHIVE_NAMESPACE
from herder.api.management.clusters import is_pair, source_provisioning_cluster
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER, REGISTRATION_TOKEN
from herder.api.management.names import DEFAULT_TOKEN, token_secret
from herder.api.management.registration import read_tokens
from herder.api.references.catalogue import Target
from herder.api.rke import cluster_spec, log
from herder.api.rke import names as rke_names
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.engine.client.client import Client
from herder.engine.meta import names
from herder.engine.meta.errors import BadRequest, NotFound, StatusError, forbidden, not_found
from herder.engine.meta.kinds import Kind, Object
from herder.engine.wire import Request, Response, User
from herder.gateway.admission.access import Access
from herder.gateway.identity.bodies import answer
from herder.gateway.machine_logs import machine_log

OBJECTS, LOGS, REGISTRATION, SNAPSHOTS = "objects", "logs", "registration", "snapshots"
_PATH = re.compile(rf"/v3/clusters/([^/]+)/({OBJECTS}|{LOGS}|{REGISTRATION})")
_SNAPSHOT = re.compile(rf"/v3/clusters/([^/]+)/{SNAPSHOTS}/([^/]+)")
_DELETION = re.compile(r"/v3/deletions/([^/]+)/([^/]+)/([^/]+)")
_OF_CLUSTER = (MACHINE_DEPLOYMENT, MACHINE_SET, MACHINE_POOL, MACHINE)
PAGE_SIZE = 100
_DIGESTS, _APPLIED_DIGEST = "specHistory", "appliedDigest"  # in the status of control planes
_VERBS = {OBJECTS: "get", LOGS: "update", REGISTRATION: "update", SNAPSHOTS: "update"}
"""Right on the provisioning Cluster that a path needs. Logs, registration tokens and deletions are for owners."""

Permitted = Callable[[], Awaitable[Object]]
"""Returns the provisioning Cluster while the user has the rights on it. Raises StatusError."""


class ClusterObjects:
    """Answers `GET /v3/clusters/<id>/objects`, `…/logs` and `…/registration`, and
    `GET /v3/deletions/<namespace>/<name>/<uid>`; and `DELETE /v3/clusters/<id>/snapshots/<name>`.
    """

    def __init__(self, client: Client, access: Access) -> None:
        self._client = client
        self._access = access

    async def handle(self, request: Request, user: User) -> Response | None:
        if request.method == "DELETE" and (snapshot := _SNAPSHOT.fullmatch(request.path)):
            _check_names(*snapshot.groups())
            return answer(await self._delete_snapshot(user, *snapshot.groups()))
        if request.method != "GET":
            return None
        if deletion := _DELETION.fullmatch(request.path):
            _check_names(*deletion.groups()[:2])
            return answer(await self._deletion(user, *deletion.groups()))
        path = _PATH.fullmatch(request.path)
        if path is None:
            return None
        cluster_id, part = path.groups()
        _check_names(cluster_id)
        cluster = await self._permitted(user, cluster_id, part)
        if part == OBJECTS:
            return _list_response(await self._objects(cluster, partial(self._permitted, user, cluster_id, part)))
        if part == REGISTRATION:
            return answer(await self._registration(cluster_id))
        machine = request.query.get("machine")
        return answer({"log": await self._machine_log(cluster, machine) if machine else await self._log(cluster)})

    async def _permitted(self, user: User, cluster_id: str, part: str) -> Object:
        """The provisioning Cluster, if the user has the rights that the path needs."""
        if not await self._access.may_use(user, cluster_id):
            raise not_found(MANAGEMENT_CLUSTER.resource.group_resource, cluster_id)
        cluster = await self._provisioning_cluster(cluster_id)
        await self._check_right(user, cluster, _VERBS[part])
        return cluster

    async def _provisioning_cluster(self, cluster_id: str) -> Object:
        management = await self._client.get(MANAGEMENT_CLUSTER.resource, cluster_id)
        namespace, _, name = (source_provisioning_cluster(management) or "").partition("/")
        if name:
            with suppress(NotFound):
                found = await self._client.get(PROVISIONING_CLUSTER.resource, name, namespace=namespace)
                if is_pair(management, found):
                    return found
        raise NotFound(f'clusters.management.cattle.io "{cluster_id}" has no provisioning Cluster')

    async def _check_right(self, user: User, cluster: Object, verb: str) -> None:
        kind, meta = PROVISIONING_CLUSTER, cluster["metadata"]
        target = Target(kind.group, kind.plural, meta["namespace"], meta["name"])
        if not await self._access.may(user, verb, target):
            why = f'User "{user.name}" cannot {verb} this cluster; only its owners may do this'
            raise forbidden(kind.resource.group_resource, meta["name"], why)

    async def _deletion(self, user: User, namespace: str, name: str, uid: str) -> Object:
        """What the deletion of a Cluster waits for, for its creator and for users who may still read it.

        The rights of its owners end when the deletion begins, so that they do not extend to a successor of its name.
        """
        cluster = await self._client.get(PROVISIONING_CLUSTER.resource, name, namespace=namespace)
        is_same = cluster["metadata"]["uid"] == uid and is_deleting(cluster)
        if not is_same or not await self._may_follow(user, cluster):
            raise not_found(PROVISIONING_CLUSTER.resource.group_resource, name)
        shown = ("name", "namespace", "uid", "deletionTimestamp", "finalizers")
        metadata = {key: value for key, value in cluster["metadata"].items() if key in shown}
        metadata["managedFields"] = [*_managers_of_finalizers(cluster)]
        return {"metadata": metadata, "status": {"conditions": (cluster.get("status") or {}).get("conditions") or []}}

    async def _may_follow(self, user: User, cluster: Object) -> bool:
        kind, meta = PROVISIONING_CLUSTER, cluster["metadata"]
        if annotations_of(cluster).get(CREATOR) == user.name:
            return True
        return await self._access.may(user, "get", Target(kind.group, kind.plural, meta["namespace"], meta["name"]))

    # --- objects ----------------------------------------------------------------------------------------------------

    async def _objects(self, cluster: Object, permitted: Permitted) -> AsyncIterator[Object]:
        """The provisioning Cluster, the Cluster with the objects that it references, its machines and snapshots.

        The first ones are read at once, so that an error is a response. Before each page, `permitted` repeats the
        check: a slow reader may have lost its rights since, and the name may be another user's cluster.
        """

        async def check() -> None:
            with suppress(StatusError):
                if (await permitted())["metadata"]["uid"] == cluster["metadata"]["uid"]:
                    return
            raise ConnectionAbortedError(f"cluster {cluster['metadata']['name']}: its reader lost the right")

        found, namespace, name = [cluster], cluster["metadata"]["namespace"], cluster["metadata"]["name"]
        kinds: Sequence[Kind] = ()
        with suppress(NotFound):
            core = await self._core_cluster(cluster)
            found.append(core)
            references = [core["spec"].get(field) for field in ("infrastructureRef", "controlPlaneRef")]
            found += [each for reference in references if reference for each in await self._referenced(core, reference)]
            kinds = _OF_CLUSTER

        async def all_objects() -> AsyncIterator[Object]:
            owners = {each["metadata"].get("uid", "") for each in found}
            for each in found:
                yield _without_previous_spec(_without_managed_fields(each))
            for kind in kinds:
                with suppress(NotFound):
                    async for each in self._of_cluster(kind, namespace, f"{CLUSTER_NAME}={name}", check):
                        owners.add(each["metadata"].get("uid", ""))
                        yield _without_managed_fields(each)
            async for each in self._snapshots(namespace, name, owners if kinds else (), check):
                yield _without_managed_fields(each)

        return all_objects()

    async def _core_cluster(self, cluster: Object) -> Object:
        """The Cluster of Cluster API that was created for this one. Another one of the name may be another user's."""
        namespace, name = cluster["metadata"]["namespace"], cluster["metadata"]["name"]
        found = await self._client.get(CLUSTER.resource, name, namespace=namespace)
        owners = found["metadata"].get("ownerReferences") or ()
        if not any(each.get("controller") and each.get("uid") == cluster["metadata"]["uid"] for each in owners):
            raise not_found(CLUSTER.resource.group_resource, name)
        return found

    async def _snapshots(
        self, namespace: str, name: str, owners: Collection[str], check: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[Object]:
        """Snapshots that these objects own, given by UID. Others with the label may be of a former cluster of that
        name, which belonged to another user."""
        if not owners:
            return
        labels = f"{rke_names.CLUSTER_NAME}={name}"
        with suppress(NotFound):
            async for each in self._of_cluster(ETCD_SNAPSHOT, namespace, labels, check):
                references = each["metadata"].get("ownerReferences") or ()
                if any(reference.get("uid") in owners for reference in references):
                    yield _without_spec_copy(each)

    async def _delete_snapshot(self, user: User, cluster_id: str, name: str) -> Object:
        core = await self._core_cluster(await self._permitted(user, cluster_id, SNAPSHOTS))
        namespace = core["metadata"]["namespace"]
        found = await self._client.get(ETCD_SNAPSHOT.resource, name, namespace=namespace)
        if not await self._is_snapshot_of(core, found):
            raise not_found(ETCD_SNAPSHOT.resource.group_resource, name)
        uid = found["metadata"]["uid"]
        await self._client.delete(ETCD_SNAPSHOT.resource, name, namespace=namespace, uid=uid)
        return {"metadata": {"name": name, "namespace": namespace, "uid": uid}}

    async def _is_snapshot_of(self, core: Object, snapshot: Object) -> bool:
        """Whether the Cluster or one of its Machines owns the snapshot; its label alone may be of a former cluster."""
        for owner in snapshot["metadata"].get("ownerReferences") or ():
            if owner["uid"] == core["metadata"]["uid"]:
                return True
            if owner["kind"] == MACHINE.kind:
                with suppress(NotFound):
                    namespace = core["metadata"]["namespace"]
                    machine = await self._client.get(MACHINE.resource, owner["name"], namespace=namespace)
                    is_same = machine["metadata"]["uid"] == owner["uid"]
                    return bool(is_same and machine["spec"].get("clusterName") == core["metadata"]["name"])
        return False

    async def _of_cluster(
        self, kind: Kind, namespace: str, labels: str, check: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[Object]:
        """Objects of one consistent list. A page is read when the page before it is sent: slow readers would keep
        whole lists in memory."""
        token = ""
        while True:
            await check()
            page = await self._client.list(
                kind.resource, namespace=namespace, labels=labels, limit=PAGE_SIZE, continue_token=token
            )
            for each in page.items:
                yield each
            token = page.continue_token
            if not token:
                return

    async def _referenced(self, core: Object, reference: Object) -> list[Object]:
        """The referenced object, if the Cluster owns it. The reference alone must not reveal objects of others."""
        with suppress(NotFound):
            definition = definition_name(reference_group(reference), reference["kind"])
            known = external_kind(reference, await self._client.get(CRD.resource, definition))
            if not isinstance(known, str):
                namespace = core["metadata"]["namespace"]
                found = await self._client.get(known[0].resource, reference["name"], namespace=namespace)
                owners = {each.get("uid") for each in found["metadata"].get("ownerReferences") or ()}
                return [found] if core["metadata"]["uid"] in owners else []
        return []

    # --- logs -------------------------------------------------------------------------------------------------------

    async def _log(self, cluster: Object) -> str:
        """Log of this cluster alone. One of that name before it may have belonged to another user."""
        with suppress(NotFound):
            name = log.archived_name(cluster)
            kept = await self._client.get(CONFIG_MAP.resource, name, namespace=ARCHIVE_NAMESPACE)
            if log.uid_of(kept) == cluster["metadata"]["uid"]:
                return str((kept.get("data") or {}).get(log.LOG, ""))
        return ""

    async def _machine_log(self, cluster: Object, name: str) -> str:
        _check_names(name)
        core, namespace = await self._core_cluster(cluster), cluster["metadata"]["namespace"]
        machine = await self._client.get(MACHINE.resource, name, namespace=namespace)
        if machine["spec"].get("clusterName") != core["metadata"]["name"]:
            raise not_found(MACHINE.resource.group_resource, name)
        reference = machine["spec"]["infrastructureRef"]
        if reference_group(reference) != MACHINE_GROUP:
            return ""  # of another provider, which runs no Job
        return await machine_log(self._client, namespace, reference["kind"], reference["name"])

    # --- registration -----------------------------------------------------------------------------------------------

    async def _registration(self, cluster_id: str) -> Object:
        """Status of the registration token, and the token itself; empty before the token is issued."""
        with suppress(NotFound):
            token = await self._client.get(REGISTRATION_TOKEN.resource, DEFAULT_TOKEN, namespace=cluster_id)
            status = token.get("status") or {}
            if status.get("tokenSecretName"):
                secret = await self._client.get(SECRET.resource, token_secret(DEFAULT_TOKEN), namespace=cluster_id)
                tokens = read_tokens(secret)
                return {"status": status, "token": tokens.token if tokens else ""}
        return {}


def _check_names(*found: str) -> None:
    """Refuse what is not a name. The client does not encode names: others could change the path of its request, which
    has the manager's rights."""
    for name in found:
        if names.dns1123_subdomain(name):
            raise BadRequest("invalid name")


def _list_response(items: AsyncIterator[Object]) -> Response:
    """A cluster has up to 5,000 machines: each is encoded when it is sent, not all in one turn of the event loop."""

    async def pieces() -> AsyncIterator[bytes]:
        separator = b'{"items":['
        async for each in items:
            yield separator + msgspec.json.encode(each)
            separator = b","
        yield b"]}"

    return Response(200, {"content-type": "application/json", "cache-control": "no-store"}, stream=pieces())


def _without_spec_copy(snapshot: Object) -> Object:
    """Without the spec of the cluster at that time: it is large, and may have what users have removed since."""
    file = {key: value for key, value in (snapshot.get("snapshotFile") or {}).items() if key != "metadata"}
    return {**snapshot, "snapshotFile": file}


def _without_previous_spec(obj: Object) -> Object:
    """Without the spec before the last version, which the control plane keeps for the next snapshot: members may not
    read what was removed before they became members. They could guess short values by the digests of earlier specs,
    also of the last one that all machines have."""
    annotations, status = annotations_of(obj), obj.get("status") or {}
    hidden = {_DIGESTS}
    if _APPLIED_DIGEST in status and not (obj.get("spec") and cluster_spec.is_applied(obj)):
        hidden.add(_APPLIED_DIGEST)
    if not hidden.isdisjoint(status):
        obj = {**obj, "status": {key: value for key, value in status.items() if key not in hidden}}
    if rke_names.PREVIOUS_SPEC not in annotations:
        return obj
    kept = {key: value for key, value in annotations.items() if key != rke_names.PREVIOUS_SPEC}
    return {**obj, "metadata": {**obj["metadata"], "annotations": kept}}


def _managers_of_finalizers(obj: Object) -> Iterator[Object]:
    """Which manager set which finalizer. The other fields have keys of the spec, such as names of variables, that a
    creator may not read who is not an owner any more."""
    for entry in obj["metadata"].get("managedFields") or ():
        finalizers = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:finalizers")
        if finalizers:
            fields = {"f:metadata": {"f:finalizers": finalizers}}
            yield {"manager": entry.get("manager") or "", "operation": entry.get("operation") or "", "fieldsV1": fields}


def _without_managed_fields(obj: Object) -> Object:
    return {**obj, "metadata": {key: value for key, value in obj["metadata"].items() if key != "managedFields"}}
