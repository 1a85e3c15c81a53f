"""Takes pods that ask for this node: there may be no scheduler at all, or one that is faster."""

from __future__ import annotations

import asyncio

from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import BadRequest, Conflict, Invalid, NotFound, StatusError
from herder.engine.meta.kinds import Object
from herder.engine.runner.following import Following, Name
from herder.engine.runner.kinds import PODS
from herder.engine.runner.node import LABEL, TAINT, node_labels
from herder.engine.runner.recorder import Recorder

log = get_logger(__name__)

_RETRY = 2.0
_AT_ONCE = 4


class Binder:
    def __init__(self, client: Client, node: str, recorder: Recorder) -> None:
        self._client = client
        self._node = node
        self._recorder = recorder
        self._labels = node_labels(node)
        self._waiting: asyncio.Queue[Name] = asyncio.Queue()
        self.unbound = Following(client, PODS, self._seen, fields="spec.nodeName=")

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.unbound.run())
            for _ in range(_AT_ONCE):
                tasks.create_task(self._bind_all())

    async def _bind_all(self) -> None:
        while True:
            name = await self._waiting.get()
            pod = self.unbound.get(name)
            if pod is not None and asks_for(pod, self._labels):
                await self._bind(name, pod)
            await asyncio.sleep(0)  # calls within the process may never have waited: let others on

    def _seen(self, name: Name, pod: Object | None) -> None:
        if pod is not None and asks_for(pod, self._labels):
            self._waiting.put_nowait(name)

    async def _bind(self, name: Name, pod: Object) -> None:
        namespace, pod_name = name
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod_name, "namespace": namespace, "uid": pod["metadata"]["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self._node},
        }
        try:
            await self._client.create(PODS, binding, namespace=namespace, name=pod_name, subresource="binding")
        except (NotFound, Conflict, BadRequest, Invalid):
            return  # gone, or a scheduler was faster
        except (StatusError, OSError) as error:
            log.warning("not bound", pod=pod_name, error=str(error))
            asyncio.get_running_loop().call_later(_RETRY, self._waiting.put_nowait, name)
            return
        told = f"Successfully assigned {namespace}/{pod_name} to {self._node}"
        self._recorder.normal(pod, "Scheduled", told)


def asks_for(pod: Object, labels: dict[str, str]) -> bool:
    """Whether an unbound pod selects this kind of node by its label and bears its taint."""
    spec = pod["spec"]
    selector = spec.get("nodeSelector") or {}
    if "deletionTimestamp" in pod["metadata"] or spec.get("schedulingGates") or spec.get("nodeName"):
        return False
    if selector.get(LABEL) != "true" or any(labels.get(key) != value for key, value in selector.items()):
        return False
    return any(_tolerates(toleration) for toleration in spec.get("tolerations") or ())


def _tolerates(toleration: Object) -> bool:
    if toleration.get("effect") not in (None, "", TAINT["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", TAINT["key"])
    return toleration.get("key") == TAINT["key"] and toleration.get("value", "") == TAINT["value"]
