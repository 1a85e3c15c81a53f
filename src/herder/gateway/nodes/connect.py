"""`/v3/connect/…`: authenticate a machine and return where and how it reads its plan.

A provisioned machine presents the token of its install script. A custom machine presents the registration token of its
cluster, and is registered first.
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
from herder.api.management.clusters import is_pair
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.management.names import PROVISIONING_CLUSTER_OF
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.node.bootstrap_token import is_valid
from herder.api.rke.node.requests import ID, BadClaim, check_roles, machine_id, parse_request, registration_headers
from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object
from herder.engine.wire import Request, Response, User
from herder.gateway.nodes.machine_accounts import MachineAccounts
from herder.gateway.nodes.machine_requests import MachineRequests
from herder.gateway.nodes.text_responses import Refusal, as_json, text

log = get_logger(__name__)

WAIT_SECONDS = 120.0
CONFIG_FILE = "config.yaml.d/50-rancher.yaml"
FIELD = "x-cattle-field"
EXPIRED = (
    "the token of this install script has expired; it is only valid for the first minutes of one machine. "
    "Delete the Machine to have it replaced"
)
WRONG_MACHINE = "the registration returned another machine's Machine; retry"
UNKNOWN = "unknown token; get a new command with herder register CLUSTER"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated machine: by its bootstrap token, or by the registration token of its cluster."""

    bootstrap: Object | None = None  # metadata of its token Secret
    cluster: Object | None = None  # management Cluster

    @property
    def user(self) -> User:
        """For rate limits: what the token was issued for."""
        meta = (self.bootstrap or self.cluster or {"metadata": {}})["metadata"]
        return User(f"herder:machines:{meta.get('namespace', '')}:{meta.get('name', '')}")


class ConnectHandler:
    """Handlers of `/v3/connect/…`."""

    def __init__(
        self,
        client: Client,
        accounts: MachineAccounts,
        *,
        cluster_of: Callable[[str], Object | None],
        clock: Callable[[], datetime],
        setting: Callable[[str], str],
        wait: float = WAIT_SECONDS,
    ) -> None:
        """`cluster_of` returns the management Cluster of a registration token."""
        self._client = client
        self._accounts = accounts
        self._requests = MachineRequests(client)
        self._cluster_of = cluster_of
        self._clock = clock
        self._setting = setting
        self._wait = wait

    # --- /v3/connect/agent ------------------------------------------------------------------------------------------

    async def agent(self, request: Request) -> Response:
        claims, caller = await self._admitted(request)
        machine = await self._wait_for(self._machine(caller, claims), "its Machine does not exist yet")
        await self._record_id(machine, claims[ID][0])
        token = await self._wait_for(self._accounts.plan_token(machine), "its plan is not prepared yet")
        meta = machine["metadata"]
        log.info("node connected", namespace=meta["namespace"], machine=meta["name"])
        return as_json(
            {
                "namespace": meta["namespace"],
                "secretName": labels_of(token)[names.ACCOUNT_NAME],
                "kubeConfig": self._kubeconfig(base64.b64decode(token["data"]["token"]).decode()),
            }
        )

    async def _admitted(self, request: Request) -> tuple[dict[str, list[str]], Caller]:
        """Many machines may wait behind one address. They are limited by token, because a client can choose any ID."""
        claims, caller = self._identify(request)
        await request.admit(caller.user, long_running=True)
        return claims, caller

    def _identify(self, request: Request) -> tuple[dict[str, list[str]], Caller]:
        if not request.headers.get("x-cattle-id", "").strip():
            raise Refusal(401, "header X-Cattle-Id: missing")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Refusal(401, "header Authorization: a Bearer token is needed")
        caller = self._authenticate(token.strip())
        try:
            claims = registration_headers(request.headers)
            claims[ID] = [machine_id(request.headers["x-cattle-id"].strip())]
        except BadClaim as problem:
            raise Refusal(400, str(problem)) from None
        return claims, caller

    def _authenticate(self, token: str) -> Caller:
        secret = self._accounts.bootstrap_token(token)
        if secret is not None:
            if not is_valid(secret, self._setting, self._clock()):
                raise Refusal(401, EXPIRED)
            return Caller(bootstrap=secret)
        cluster = self._cluster_of(token)
        if cluster is None:
            raise Refusal(401, UNKNOWN)
        return Caller(cluster=cluster)

    async def _machine(self, caller: Caller, claims: dict[str, list[str]]) -> Object:
        if caller.cluster is None:
            return await self._provisioned_machine(caller.bootstrap)
        try:
            check_roles(parse_request(claims))
        except BadClaim as problem:
            raise Refusal(400, str(problem)) from None
        machine = await self._requests.taken_in(caller.cluster["metadata"]["name"], claims)
        # Editors of the cluster's namespace can change the answer.
        if not _is_claimed_machine(machine, await self._provisioned(caller.cluster), claims[ID][0]):
            raise Refusal(400, WRONG_MACHINE)
        return machine

    async def _provisioned_machine(self, secret: Object | None) -> Object:
        issued = await self._accounts.issued_to(secret, names.ACCOUNT_FOR_BOOTSTRAP) if secret else None
        if issued is None:
            raise Refusal(401, "the Machine of this install script does not exist anymore")
        if names.LAST_ACCESS not in annotations_of(issued.secret):  # Otherwise repeated use could extend its lifetime.
            await self._accounts.stamp(issued.secret, timestamp(self._clock()))
        return issued.machine

    async def _record_id(self, machine: Object, claimed_id: str) -> None:
        """Record the ID once, unless another Machine has it: a client with the ID and the cluster's token is taken
        for that Machine."""
        meta, cluster = machine["metadata"], machine["spec"]["clusterName"]
        if names.MACHINE_ID in labels_of(machine) or await self._with_id(meta["namespace"], cluster, claimed_id):
            return
        label = {"metadata": {"labels": {names.MACHINE_ID: claimed_id}}}
        await self._client.patch(MACHINE.resource, meta["name"], label, namespace=meta["namespace"])

    async def _with_id(self, namespace: str, cluster: str, claimed_id: str) -> list[Object]:
        selector = f"{names.MACHINE_ID}={claimed_id},{CLUSTER_NAME}={cluster}"
        return (await self._client.list_all(MACHINE.resource, namespace=namespace, labels=selector)).items

    async def _wait_for(self, answer: Awaitable[T], pending: str) -> T:
        try:
            async with asyncio.timeout(self._wait):
                return await answer
        except TimeoutError:
            raise Refusal(503, f"{pending}; see herder describe; the node retries automatically") from None

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

    # --- cluster-info and config-yaml -------------------------------------------------------------------------------

    async def cluster_info(self, request: Request) -> Response:
        claims, caller = await self._admitted(request)
        fields = [part.strip() for part in request.headers.get(FIELD, "").split(",") if part.strip()]
        if not fields:
            raise Refusal(500, "header X-Cattle-Field: missing; supported: kubernetesversion")
        control_plane = await self._control_plane(caller, claims[ID][0])
        version = (control_plane.get("spec") or {}).get("kubernetesVersion") or ""
        return as_json({field: version for field in fields if field.lower() == "kubernetesversion"})

    async def config_yaml(self, request: Request) -> Response:
        claims, caller = await self._admitted(request)
        machine = await self._existing(caller, claims[ID][0])
        token = await self._wait_for(self._accounts.plan_token(machine), "its plan is not prepared yet")
        secret = await self._client.get(
            SECRET.resource, labels_of(token)[names.ACCOUNT_NAME], namespace=machine["metadata"]["namespace"]
        )
        content = _config(secret)
        if content is None:
            raise Refusal(503, "its plan has no configuration yet")
        return text(200, content, "application/json")

    async def _control_plane(self, caller: Caller, claimed_id: str) -> Object:
        machine = await self._existing(caller, claimed_id)
        namespace, name = machine["metadata"]["namespace"], machine["spec"]["clusterName"]
        try:
            return await self._client.get(CONTROL_PLANE.resource, name, namespace=namespace)
        except NotFound:
            raise Refusal(401, "its cluster has no RKEControlPlane") from None

    async def _existing(self, caller: Caller, claimed_id: str) -> Object:
        """The caller's Machine; never creates one."""
        if caller.cluster is None:
            return await self._provisioned_machine(caller.bootstrap)
        namespace, name = await self._provisioned(caller.cluster)
        if not name:
            raise Refusal(401, "the cluster is not provisioned here")
        machines = await self._with_id(namespace, name, claimed_id)
        if len(machines) != 1:
            raise Refusal(401, "no Machine of this cluster has that X-Cattle-Id")
        return machines[0]

    async def _provisioned(self, cluster: Object) -> tuple[str, str]:
        """Namespace and name of the provisioning Cluster; empty if there is none."""
        namespace, _, name = annotations_of(cluster).get(PROVISIONING_CLUSTER_OF, "").partition("/")
        try:
            found = await self._client.get(PROVISIONING_CLUSTER.resource, name, namespace=namespace) if name else None
        except NotFound:
            found = None
        return (namespace, name) if found is not None and is_pair(cluster, found) else ("", "")


def _is_claimed_machine(machine: Object, provisioned: tuple[str, str], claimed_id: str) -> bool:
    """Whether the Machine belongs to this cluster and has this machine ID."""
    is_of_cluster = (machine["metadata"]["namespace"], machine["spec"]["clusterName"]) == provisioned
    return is_of_cluster and claimed_id == labels_of(machine).get(names.MACHINE_ID, "")


def _config(secret: Object) -> str | None:
    """The Kubernetes configuration in the plan."""
    try:
        plan: Mapping[str, Any] = json.loads(base64.b64decode((secret.get("data") or {}).get("plan") or "") or "{}")
        files = [file for file in plan.get("files") or () if str(file.get("path", "")).endswith(CONFIG_FILE)]
        return base64.b64decode(files[0].get("content") or "").decode() if files else None
    except (ValueError, binascii.Error):
        return None
