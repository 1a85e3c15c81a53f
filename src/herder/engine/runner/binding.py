"""Bind pods that select this node, in case there is no scheduler; a scheduler may also bind them first."""

from __future__ import annotations

import asyncio

from herder.engine.client.client import Client
from herder.engine.control.cache import Cache, Change, Key
from herder.engine.control.informer import Informer
from herder.engine.control.loop import ControlLoop
from herder.engine.meta.errors import BadRequest, Conflict, Invalid, NotFound
from herder.engine.meta.kinds import Object
from herder.engine.runner.kinds import POD, PODS
from herder.engine.runner.node import LABEL, TAINT, node_labels
from herder.engine.runner.recorder import Recorder

_RETRY = 2.0
_WORKERS = 4


class Binder:
    """Controller that binds unbound pods which select this node."""

    def __init__(self, client: Client, node: str, recorder: Recorder) -> None:
        self._client = client
        self._node = node
        self._recorder = recorder
        self._labels = node_labels(node)
        self._unbound = Cache(POD)
        self._informer = Informer(client, self._unbound, self._changed, fields="spec.nodeName=")
        self._loop: ControlLoop[Key] = ControlLoop("pod-binder", self._reconcile, workers=_WORKERS, max_retry=_RETRY)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._informer.run())
            tasks.create_task(self._loop.run())

    def _changed(self, change: Change) -> None:
        if change.new is not None and selects_node(change.new, self._labels):
            self._loop.add(change.key)

    async def _reconcile(self, name: Key) -> None:
        pod = self._unbound.get(name)
        if pod is not None and selects_node(pod, self._labels):
            await self._bind(name, pod)

    async def _bind(self, name: Key, pod: Object) -> None:
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
            return  # deleted, or a scheduler bound it first
        self._recorder.normal(pod, "Scheduled", f"Successfully assigned {namespace}/{pod_name} to {self._node}")


def selects_node(pod: Object, labels: dict[str, str]) -> bool:
    """Return whether an unbound pod selects runner nodes by label and tolerates their taint."""
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
