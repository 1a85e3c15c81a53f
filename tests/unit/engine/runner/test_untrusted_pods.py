"""Attacks of a namespace editor on the host of the runner, on both engines.

Each test adds a node with the default policy to the engine: the node that the other tests share runs any pod.
"""

from __future__ import annotations

import asyncio
import base64
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from herder.engine.meta.errors import AlreadyExists
from herder.engine.meta.kinds import Object
from herder.engine.runner.approval import MAC_ANNOTATION, SPEC_ANNOTATION, Owner, approve
from herder.engine.runner.runner import Runner
from tests.unit.engine.runner.engines import CONFIG_MAPS, JOBS, NAMESPACES, PODS, SECRETS, Engine, finished, job
from tests.unit.engine.runner.inprocess import wall_clock

NODE = "guarded"
KEY = b"k" * 32
SIGNED = 'echo "$WORD $(cat /var/run/secrets/kubernetes.io/serviceaccount/namespace)"'


@asynccontextmanager
async def running_guarded_node(engine: Engine, work_dir: Path, **options: Any) -> AsyncIterator[None]:
    async def key() -> bytes:
        return KEY

    options = {"commands": lambda _image: None, "approval_key": key, **options}
    runner = Runner(engine.client, name=NODE, work_dir=work_dir, clock=wall_clock, **options)
    task = asyncio.ensure_future(runner.run())
    try:
        async with asyncio.timeout(20):
            await runner.ready.wait()
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def on_node(obj: Object) -> Object:
    pod = obj["spec"]["template"]["spec"] if obj["kind"] == "Job" else obj["spec"]
    pod["nodeSelector"]["kubernetes.io/hostname"] = NODE
    return obj


async def test_a_job_of_a_namespace_editor_is_rejected(engine: Engine, tmp_path: Path) -> None:
    async with running_guarded_node(engine, tmp_path / "work"):
        await engine.client.create(JOBS, on_node(job("of-an-editor", "id")), namespace="default")
        assert finished(await engine.until(JOBS, "of-an-editor", finished)) == "Failed"
        (pod,) = await engine.pods_of("of-an-editor")
        assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "PodNotApproved")


async def test_a_pod_of_a_namespace_editor_is_rejected(engine: Engine, tmp_path: Path) -> None:
    spec = job("bare", "id")["spec"]["template"]["spec"]
    bare = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare", "namespace": "default"}, "spec": spec}
    async with running_guarded_node(engine, tmp_path / "work"):
        await engine.client.create(PODS, on_node(bare), namespace="default")
        ended = await engine.until(PODS, "bare", lambda pod: pod["status"]["phase"] in {"Succeeded", "Failed"})
        assert (ended["status"]["phase"], ended["status"]["reason"]) == ("Failed", "PodNotApproved")


# --- copied approvals ---------------------------------------------------------------------------------------------


async def create_approved_job(engine: Engine, name: str) -> Object:
    """Return a Job as Herder's controllers create it, with its own owner object and Secret."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    found = await engine.client.create(CONFIG_MAPS, owner, namespace="default")
    data = {"WORD": base64.b64encode(b"signed").decode()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}
    await engine.client.create(SECRETS, secret, namespace="default")
    signed_job = on_node(job(name, SIGNED, container={"envFrom": [{"secretRef": {"name": name}}]}))
    template = signed_job["spec"]["template"]
    annotations = approve(
        KEY,
        "default",
        job=name,
        owner=Owner("", "v1", "configmaps", name, found["metadata"]["uid"]),
        spec=copy.deepcopy(template["spec"]),
        secrets={name: {"WORD": b"signed"}},
    )
    template["metadata"] = {"annotations": annotations}
    return signed_job


async def create_and_expect_rejection(engine: Engine, signed_job: Object, *, namespace: str = "default") -> str:
    """Create the Job, check that none of its containers ran, and return the reason."""
    signed_job["metadata"]["namespace"] = namespace
    name = signed_job["metadata"]["name"]
    await engine.client.create(JOBS, signed_job, namespace=namespace)
    assert finished(await engine.until(JOBS, name, finished, namespace=namespace)) == "Failed"
    (pod,) = await engine.pods_of(name, namespace=namespace)
    assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "PodNotApproved")
    assert all("terminated" not in one["state"] for one in pod["status"].get("containerStatuses") or ())
    return str(pod["status"]["message"])


async def test_a_signed_job_runs_as_signed(engine: Engine, tmp_path: Path) -> None:
    """A forged Job has the annotations of a real one and another command: the signed command runs."""
    signed_job = await create_approved_job(engine, "signed")
    container = signed_job["spec"]["template"]["spec"]["containers"][0]
    container |= {
        "command": ["sh", "-c", "echo forged"],
        "image": "forged",
        "env": [{"name": "WORD", "value": "forged"}],
    }
    async with running_guarded_node(engine, tmp_path / "work"):
        await engine.client.create(JOBS, signed_job, namespace="default")
        assert finished(await engine.until(JOBS, "signed", finished)) == "Complete"
    (log,) = (tmp_path / "work").glob("pods/*/containers/main/0/log")
    assert log.read_text().split(" F ")[1] == "signed default\n"


async def test_a_copied_approval_admits_no_other_pod(engine: Engine, tmp_path: Path) -> None:
    signed_job = await create_approved_job(engine, "copied")
    text = signed_job["spec"]["template"]["metadata"]["annotations"][SPEC_ANNOTATION]
    changed, renamed, unsigned, other = (copy.deepcopy(signed_job) for _ in range(4))
    changed["spec"]["template"]["metadata"]["annotations"][SPEC_ANNOTATION] = text.replace("$WORD", "forged")
    renamed["metadata"]["name"] = "copied-2"
    unsigned["metadata"]["name"] = "copied-3"
    del unsigned["spec"]["template"]["metadata"]["annotations"][MAC_ANNOTATION]
    container = {"name": "second", "image": "x", "command": ["id"]}
    other["spec"]["template"]["spec"]["containers"].append(container)
    other["metadata"]["name"] = "copied-4"
    try:
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}}
        await engine.client.create(NAMESPACES, space)
    except AlreadyExists:
        pass
    async with running_guarded_node(engine, tmp_path / "work"):
        assert "is not a signature" in await create_and_expect_rejection(engine, changed)
        assert "Job copied does not control this pod" in await create_and_expect_rejection(engine, renamed)
        assert "did not create this pod's Job" in await create_and_expect_rejection(engine, unsigned)
        assert "spec.containers are not those of the Job" in await create_and_expect_rejection(engine, other)
        assert "is not a signature" in await create_and_expect_rejection(
            engine, copy.deepcopy(signed_job), namespace="elsewhere"
        )


async def test_an_approval_is_invalid_once_its_object_is_deleted(engine: Engine, tmp_path: Path) -> None:
    signed_job = await create_approved_job(engine, "outlived")
    await engine.client.delete(CONFIG_MAPS, "outlived", namespace="default")
    again = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "outlived"}}
    await engine.client.create(CONFIG_MAPS, again, namespace="default")
    async with running_guarded_node(engine, tmp_path / "work"):
        assert "configmaps outlived, for which" in await create_and_expect_rejection(engine, signed_job)


async def test_a_replaced_secret_is_not_used(engine: Engine, tmp_path: Path) -> None:
    """Variables such as LD_PRELOAD would run a program of the namespace editor."""
    signed_job = await create_approved_job(engine, "replaced")
    data = {"LD_PRELOAD": base64.b64encode(b"/x.so").decode()}
    await engine.client.patch(SECRETS, "replaced", {"data": data}, namespace="default")
    async with running_guarded_node(engine, tmp_path / "work"):
        await engine.client.create(JOBS, signed_job, namespace="default")
        await engine.until(JOBS, "replaced", lambda one: one["status"].get("active"))
        (pod,) = await engine.pods_of("replaced")
        waits = 'secret "replaced" has changed since Herder created the Job'
        await engine.until(PODS, pod["metadata"]["name"], lambda one: waits in str(one["status"]))
        assert not list((tmp_path / "work").glob("pods/*/containers/main/0/running"))
