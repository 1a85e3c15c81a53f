"""The example controller: its decisions as a table, and its lifecycle on both engines as users run it."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from herder.api.example import FINALIZER
from herder.controllers.example.flock import reconcile
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import DONE, Apply, Decision, Delete, Effect, EffectResult, Patch
from tests.support.api import Api
from tests.support.embedded import HERDER, Embedded
from tests.support.engines import Engine
from tests.unit.controllers.example.objects import NOW, flock, key_secret, member, view

KEY = ("flock-uid", "key")


def actions_of(decision: Decision) -> list[str]:
    """Each action in short."""
    actions = []
    for write in decision.writes:
        match write:
            case Apply(subresource="status"):
                status = write.obj["status"]
                actions.append(f"status {status['phase']} {status['upToDate']}/{status['members']}")
            case Apply():
                actions.append(f"apply {write.obj['kind']} {write.obj['metadata']['name']}")
            case Patch():
                actions.append(f"finalizers {','.join(write.patch['metadata']['finalizers'])}")
            case Delete():
                actions.append(f"delete {write.ref.name} {write.uid}")
            case _:
                actions.append(str(write))
    return actions + [f"{effect.performer} {effect.arguments}" for effect in decision.effects]


@pytest.mark.parametrize(
    ("objects", "actions"),
    [
        pytest.param([], [], id="deleted"),
        pytest.param([flock(finalizer=False)], [f"finalizers {FINALIZER}"], id="new"),
        pytest.param([flock()], ["random-key {'bytes': 32}"], id="without a key"),
        pytest.param(
            [flock(), key_secret()],
            ["apply ConfigMap f-0", "apply ConfigMap f-1", "status Growing 0/0"],
            id="empty",
        ),
        pytest.param(
            [flock(), key_secret(), member(1)], ["apply ConfigMap f-0", "status Growing 0/1"], id="one is missing"
        ),
        pytest.param(
            [flock(size=1), key_secret(), member(0), member(1), member(2)],
            ["delete f-2 member-2", "status Shrinking 0/3"],
            id="two too many: the last is deleted first",
        ),
        pytest.param([flock(), key_secret(), member(0), member(1)], ["status Ready 2/2"], id="up to date"),
        pytest.param(
            [flock(message="new"), key_secret(), member(0), member(1)],
            ["apply ConfigMap f-0", "status Rolling 0/2"],
            id="a new message: one at a time",
        ),
        pytest.param(
            [flock(message="new"), key_secret(), member(0, "new"), member(1)],
            ["apply ConfigMap f-1", "status Rolling 1/2"],
            id="the second",
        ),
        pytest.param(
            [flock(message="new", pauseSeconds=60), key_secret(), member(0, "new", age=10), member(1)],
            ["status Rolling 1/2"],
            id="the second, after a pause",
        ),
        pytest.param(
            [flock(), key_secret(), member(0) | {"data": {"message": "edited"}}, member(1)],
            ["apply ConfigMap f-0", "status Rolling 1/2"],
            id="edited by a user",
        ),
        pytest.param([flock(deleting=True), member(0), member(1)], ["delete f-1 member-1"], id="being deleted"),
        pytest.param([flock(deleting=True)], ["finalizers example.com/other"], id="being deleted, and empty"),
        pytest.param([flock(deleting=True, finalizer=False)], [], id="being deleted, with finalizers of others"),
        pytest.param([flock(size=0, minAvailable=0), key_secret()], ["status Ready 0/0"], id="of size zero"),
    ],
)
def test_decisions(objects: list[Object], actions: list[str]) -> None:
    flock_view = view(*objects)
    assert actions_of(reconcile(flock_view)) == actions
    flock_view.check_unchanged()


def test_the_key_is_stored_only_in_the_secret_of_the_flock() -> None:
    flock_view = view(flock(), results={KEY: EffectResult("a2V5", attempts=1)})
    [write] = reconcile(flock_view).writes
    assert isinstance(write, Apply)
    assert write.obj["data"] == {"key": "a2V5"}
    assert write.obj["metadata"]["ownerReferences"][0]["uid"] == "flock-uid"


def test_a_key_that_cannot_be_created_is_retried_and_reported() -> None:
    decision = reconcile(view(flock(), results={KEY: EffectResult(error="OSError: no entropy", attempts=3)}))
    assert [type(effect) for effect in decision.effects] == [Effect]
    assert decision.wait is not None
    assert decision.wait.reason == "OSError: no entropy"


def test_a_pause_reports_what_comes_next_and_when() -> None:
    decision = reconcile(view(flock(message="new", pauseSeconds=60), key_secret(), member(0, "new", age=10), member(1)))
    assert decision.wait is not None
    assert decision.wait.reason == "f-1 is changed next, after a pause"
    assert str(decision.wait.on) == "ConfigMap ns/f-1"
    assert decision.wake_at is not None
    assert (decision.wake_at - NOW).total_seconds() == 50


def test_a_missing_flock_needs_no_decision() -> None:
    assert reconcile(view()) == DONE


# --- end to end ----------------------------------------------------------------------------------------------------


@contextmanager
def running(engine: str, directory: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """`herder up --example`, or `herder run --example` beside a real kube-apiserver."""
    if engine == "embedded":
        with Embedded(directory, flags=("--example", "--no-runner")) as server:
            yield Engine("embedded", server.kubeconfig)
        return
    real: Engine = request.getfixturevalue("real_engine")
    with (directory / "run.log").open("wb") as log:
        process = subprocess.Popen(
            [
                HERDER,
                "run",
                "--kubeconfig",
                real.kubeconfig,
                "--example",
                "--namespace",
                "flock-test",
                "--capi-core=external",
                "--no-machines",
            ],
            stdout=log,
            stderr=log,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
    try:
        yield real
    finally:
        process.terminate()
        assert process.wait(30) == 0, (directory / "run.log").read_text()


@pytest.mark.parametrize("engine_name", ["embedded", "real"])
async def test_a_flock_works_on_both_engines(engine_name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with running(engine_name, tmp_path, request) as engine:
        admin = Api(engine.connection)
        try:
            await admin.until("/apis/examples.herder.io/v1/flocks", lambda answer: answer.status == 200)
            await run_lifecycle(await admin.in_new_namespace())
        finally:
            await admin.close()


async def run_lifecycle(api: Api) -> None:
    flocks = "examples.herder.io/v1/flocks"
    url = api.at(flocks, "sheep")

    def ready(obj: Object) -> bool:
        status = obj.get("status") or {}
        return bool(
            status.get("phase") == "Ready" and status.get("observedGeneration") == obj["metadata"]["generation"]
        )

    async def messages() -> list[str]:
        listed = await api.read(api.at("configmaps") + "?labelSelector=examples.herder.io%2Fflock%3Dsheep")
        return [item["data"]["message"] for item in listed["items"]]

    spec = {"size": 3, "minAvailable": 2, "message": "hello"}
    await api.create(flocks, {"apiVersion": "examples.herder.io/v1", "kind": "Flock", "spec": spec} | named("sheep"))
    await api.until_object(url, ready)
    assert await messages() == ["hello"] * 3
    key = await api.read(api.at("secrets", "sheep-key"))
    assert len(base64.b64decode(key["data"]["key"])) == 32

    await api.patch(url, {"spec": {"size": 4, "message": "good morning"}})
    await api.until_object(url, ready)
    assert await messages() == ["good morning"] * 4
    assert (await api.read(api.at("secrets", "sheep-key")))["data"] == key["data"], "created once"

    await api.patch(url, {"spec": {"size": 2}})
    await api.until_object(url, ready)
    assert len(await messages()) == 2
    refused = await api.patch(url, {"spec": {"minAvailable": 5}})
    assert refused.status == 422
    assert "minAvailable cannot be greater than size" in refused.message

    await api.delete(api.at("configmaps", "sheep-0"))
    await api.until(api.at("configmaps", "sheep-0"), lambda answer: answer.status == 200)
    await api.delete(url)
    await api.until_gone(url)
    assert await messages() == []


def named(name: str) -> Object:
    return {"metadata": {"name": name}}
