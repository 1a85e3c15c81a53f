"""`/v3/connect/…`: a machine proves who it is, and is told where its plan lies and how it may read it.

A machine that was made here shows the token of its install script. One that somebody else made shows the registration
token of its cluster, and is taken in first.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import yaml

from herder.api import settings
from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import MACHINE, SECRET
from herder.api.capi.names import CLUSTER_NAME, annotations_of, labels_of
from herder.api.management.names import PROVISIONING_CLUSTER_OF
from herder.api.rke import names
from herder.api.rke.bootstrap_tokens import counts
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.requests import ID, BadClaim, check_roles, machine_id, parsed, said
from herder.engine.client.client import Client
from herder.engine.client.wire import Request, Response, User
from herder.engine.logs import get_logger
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object
from herder.gateway.nodes.accounts import Accounts
from herder.gateway.nodes.answers import Refusal, as_json, text
from herder.gateway.nodes.requests import Requests

log = get_logger(__name__)

WAIT_SECONDS = 120.0
CONFIG_FILE = "config.yaml.d/50-rancher.yaml"
FIELD = "x-cattle-field"
EXPIRED = (
    "the token of this install script has expired: it is good for the first minutes of one machine. "
    "Delete the Machine, and another is made in its place"
)
OTHERS = "the request was answered with another machine's Machine: try again"
UNKNOWN = "the token is not known here: take the command anew, with herder register CLUSTER"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Known:
    """Who asks: a machine with the token of its script, or one of a cluster with that cluster's."""

    bootstrap: Object | None = None  # the metadata of the Secret with its token
    cluster: Object | None = None  # the management Cluster

    @property
    def user(self) -> User:
        """For limits: what the token was issued for."""
        meta = (self.bootstrap or self.cluster or {"metadata": {}})["metadata"]
        return User(f"herder:machines:{meta.get('namespace', '')}:{meta.get('name', '')}")


class Connecting:
    def __init__(
        self,
        client: Client,
        accounts: Accounts,
        *,
        cluster_of: Callable[[str], Object | None],
        clock: Callable[[], datetime],
        setting: Callable[[str], str],
        wait: float = WAIT_SECONDS,
    ) -> None:
        """`cluster_of` tells which management Cluster a registration token opens."""
        self._client = client
        self._accounts = accounts
        self._requests = Requests(client)
        self._cluster_of = cluster_of
        self._clock = clock
        self._setting = setting
        self._wait = wait

    # --- /v3/connect/agent --------------------------------------------------------------------------------------------

    async def agent(self, request: Request) -> Response:
        kept, known = await self._admitted(request)
        machine = await self._patiently(self._machine(known, kept), "a Machine for it is not there yet")
        await self._note_id(machine, kept[ID][0])
        token = await self._patiently(self._accounts.plan_token(machine), "its plan is not prepared yet")
        meta = machine["metadata"]
        log.info("a node is told where its plan is", namespace=meta["namespace"], machine=meta["name"])
        return as_json(
            {
                "namespace": meta["namespace"],
                "secretName": labels_of(token)[names.ACCOUNT_NAME],
                "kubeConfig": self._kubeconfig(base64.b64decode(token["data"]["token"]).decode()),
            }
        )

    async def _admitted(self, request: Request) -> tuple[dict[str, list[str]], Known]:
        """Many machines may wait at once behind one address. They count by their token: whoever has one chooses any ID,
        and by many of them could take the connections of all users."""
        kept, known = self._known(request)
        await request.admit(known.user, long_running=True)
        return kept, known

    def _known(self, request: Request) -> tuple[dict[str, list[str]], Known]:
        if not request.headers.get("x-cattle-id", "").strip():
            raise Refusal(401, "header X-Cattle-Id: missing")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Refusal(401, "header Authorization: a Bearer token is needed")
        known = self._who(token.strip())
        try:
            kept = said(request.headers)
            kept[ID] = [machine_id(request.headers["x-cattle-id"].strip())]
        except BadClaim as problem:
            raise Refusal(400, str(problem)) from None
        return kept, known

    def _who(self, token: str) -> Known:
        secret = self._accounts.bootstrap_token(token)
        if secret is not None:
            if not counts(secret, self._setting, self._clock()):
                raise Refusal(401, EXPIRED)
            return Known(bootstrap=secret)
        cluster = self._cluster_of(token)
        if cluster is None:
            raise Refusal(401, UNKNOWN)
        return Known(cluster=cluster)

    async def _machine(self, known: Known, kept: dict[str, list[str]]) -> Object:
        if known.cluster is None:
            return await self._made_here(known.bootstrap)
        try:
            check_roles(parsed(kept))
        except BadClaim as problem:
            raise Refusal(400, str(problem)) from None
        machine = await self._requests.taken_in(known.cluster["metadata"]["name"], kept)
        # Editors of the cluster's namespace can change the answer to the request.
        if not _is_its_own(machine, known.cluster, kept[ID][0]):
            raise Refusal(400, OTHERS)
        return machine

    async def _made_here(self, secret: Object | None) -> Object:
        issued = await self._accounts.issued_to(secret, names.ACCOUNT_FOR_BOOTSTRAP) if secret else None
        if issued is None:
            raise Refusal(401, "the Machine of this install script is gone")
        if names.LAST_ACCESS not in annotations_of(issued.secret):  # else whoever uses it again and again could keep it
            await self._accounts.stamp(issued.secret, timestamp(self._clock()))
        return issued.machine

    async def _note_id(self, machine: Object, own: str) -> None:
        """Once, and not that of another Machine: whoever comes with the ID and the cluster's token is taken for it."""
        meta, cluster = machine["metadata"], machine["spec"]["clusterName"]
        if names.MACHINE_ID in labels_of(machine) or await self._with_id(meta["namespace"], cluster, own):
            return
        label = {"metadata": {"labels": {names.MACHINE_ID: own}}}
        await self._client.patch(MACHINE.resource, meta["name"], label, namespace=meta["namespace"])

    async def _with_id(self, namespace: str, cluster: str, own: str) -> list[Object]:
        selector = f"{names.MACHINE_ID}={own},{CLUSTER_NAME}={cluster}"
        return (await self._client.list_all(MACHINE.resource, namespace=namespace, labels=selector)).items

    async def _patiently(self, answer: Awaitable[T], lacking: str) -> T:
        try:
            async with asyncio.timeout(self._wait):
                return await answer
        except TimeoutError:
            raise Refusal(503, f"{lacking}: herder describe tells why; the node tries again by itself") from None

    def _kubeconfig(self, token: str) -> str:
        certificates = self._setting(settings.SERVER_CERTIFICATES).strip()
        cluster: Object = {"server": self._setting(settings.SERVER_URL).rstrip("/")}
        if certificates:
            cluster["certificate-authority-data"] = base64.b64encode(f"{certificates}\n".encode()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "agent", "cluster": cluster}],
            "users": [{"name": "agent", "user": {"token": token}}],
            "contexts": [{"name": "agent", "context": {"cluster": "agent", "user": "agent"}}],
            "current-context": "agent",
        }
        dumped: str = yaml.safe_dump(config, sort_keys=False, width=1 << 30)
        return dumped

    # --- its relatives ------------------------------------------------------------------------------------------------

    async def cluster_info(self, request: Request) -> Response:
        kept, known = await self._admitted(request)
        fields = [part.strip() for part in request.headers.get(FIELD, "").split(",") if part.strip()]
        if not fields:
            raise Refusal(500, "header X-Cattle-Field: missing; kubernetesversion can be asked for")
        control_plane = await self._control_plane(known, kept[ID][0])
        version = (control_plane.get("spec") or {}).get("kubernetesVersion") or ""
        return as_json({field: version for field in fields if field.lower() == "kubernetesversion"})

    async def config_yaml(self, request: Request) -> Response:
        kept, known = await self._admitted(request)
        machine = await self._existing(known, kept[ID][0])
        token = await self._patiently(self._accounts.plan_token(machine), "its plan is not prepared yet")
        secret = await self._client.get(
            SECRET.resource, labels_of(token)[names.ACCOUNT_NAME], namespace=machine["metadata"]["namespace"]
        )
        content = _config(secret)
        if content is None:
            raise Refusal(503, "its plan has no configuration yet")
        return text(200, content, "application/json")

    async def _control_plane(self, known: Known, own: str) -> Object:
        machine = await self._existing(known, own)
        namespace, name = machine["metadata"]["namespace"], machine["spec"]["clusterName"]
        try:
            return await self._client.get(CONTROL_PLANE.resource, name, namespace=namespace)
        except NotFound:
            raise Refusal(401, "its cluster has no RKEControlPlane") from None

    async def _existing(self, known: Known, own: str) -> Object:
        """The Machine of who asks; none is made here."""
        if known.cluster is None:
            return await self._made_here(known.bootstrap)
        namespace, name = _provisioned(known.cluster)
        if not name:
            raise Refusal(401, "the cluster is not provisioned here")
        machines = await self._with_id(namespace, name, own)
        if len(machines) != 1:
            raise Refusal(401, "no Machine of this cluster has that X-Cattle-Id")
        return machines[0]


def _provisioned(cluster: Object) -> tuple[str, str]:
    """Namespace and name of the provisioning Cluster; empty where the cluster has none."""
    namespace, _, name = annotations_of(cluster).get(PROVISIONING_CLUSTER_OF, "").partition("/")
    return namespace, name


def _is_its_own(machine: Object, cluster: Object, own: str) -> bool:
    """Whether the Machine belongs to this cluster, and is that of the machine with this ID."""
    meta = machine["metadata"]
    is_of_cluster = (meta["namespace"], machine["spec"]["clusterName"]) == _provisioned(cluster)
    return is_of_cluster and own == labels_of(machine).get(names.MACHINE_ID, "")


def _config(secret: Object) -> str | None:
    """What of the plan is the configuration of Kubernetes on the node."""
    try:
        plan: Mapping[str, Any] = json.loads(base64.b64decode((secret.get("data") or {}).get("plan") or "") or "{}")
        files = [file for file in plan.get("files") or () if str(file.get("path", "")).endswith(CONFIG_FILE)]
        return base64.b64decode(files[0].get("content") or "").decode() if files else None
    except (ValueError, binascii.Error):
        return None
