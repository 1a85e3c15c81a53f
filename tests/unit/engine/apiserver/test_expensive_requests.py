"""Requests that are expensive to process do not block the event loop."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from herder.app.host.process import GC_THRESHOLDS
from herder.engine.apiserver.build import assemble
from herder.engine.apiserver.compute import MAX_WAITING, MAX_WAITING_PER_USER, FairSemaphore
from herder.engine.meta.errors import TooManyRequests
from tests.support.attacks import requests as attacks
from tests.support.attacks import turns as loop_turns
from tests.support.attacks.requests import Attack
from tests.support.attacks.turns import in_own_turns, measured_turns
from tests.unit.engine.apiserver.api import Api, Clock

TURN_SECONDS = 0.05
ATTEMPTS = 3
"""CPU time of one turn grows where other processes share the core's caches: the best of some attempts counts."""


@pytest.fixture(scope="module", autouse=True)
def tuned() -> Iterator[None]:
    """Collect garbage like `herder up`, so that objects of other tests do not affect measurements."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture(scope="module")
async def api() -> AsyncIterator[Api]:
    clock = Clock()
    server = await assemble(None, clock=clock, entropy=os.urandom)
    found = Api(server, clock)
    defined = await found.post(attacks.DEFINITION_PATH, attacks.definition())
    assert defined.status == 201, defined.message
    async with asyncio.timeout(10):
        while (await found.ask("GET", attacks.TARGETS.format(namespace="default"))).status != 200:
            await asyncio.sleep(0.01)
    yield found
    await server.stop()


@pytest.mark.parametrize("attack", attacks.COMPUTATIONS, ids=lambda attack: attack.name)
async def test_no_request_blocks_the_event_loop(api: Api, attack: Attack) -> None:
    path = attack.path.format(namespace="default")
    if attack.creates:
        created_object = await api.post(
            attack.creates.format(namespace="default"), attacks.configmap("patched", {"a": "b"})
        )
        assert created_object.status in (201, 409), created_object.message
    found = loop_turns.Turns()
    for _ in range(ATTEMPTS):
        found = await _turns_of(api, attack, path)
        if found.longest < TURN_SECONDS:
            return
    raise AssertionError(f"{found.longest:.3f} s of CPU in {found.what}")


async def _turns_of(api: Api, attack: Attack, path: str) -> loop_turns.Turns:
    body = attack.body()
    with measured_turns() as turns:
        # Not `ask`, which would decode the response in the measured turn.
        response = await in_own_turns(api.send(attack.method, path, body, content_type=attack.content_type))
    said = response.content()[:500]
    assert response.status < 300 or 400 <= response.status < 500, said
    assert not attack.accepted or response.status in (200, 201), said
    if response.status == 201:  # so that a retry costs the same
        created = json.loads(response.content())["metadata"]["name"]
        deleted = await api.delete(f"{path.partition('?')[0].removesuffix('/' + created)}/{created}")
        assert deleted.status == 200, deleted.message
    return turns


@pytest.mark.parametrize("attack", attacks.COMPUTATIONS, ids=lambda attack: attack.name)
async def test_no_request_leaves_garbage_for_the_cycle_collector(api: Api, attack: Attack) -> None:
    """The garbage collector runs rarely on a server with thousands of objects; bodies of megabytes cannot wait for
    it."""
    if attack.creates:
        await api.post(attack.creates.format(namespace="default"), attacks.configmap("patched", {"a": "b"}))
    path = attack.path.format(namespace="default")
    body = attack.body()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await api.send(attack.method, path, body, content_type=attack.content_type)
        await asyncio.sleep(0)
        gc.collect()
        kept = sorted({type(found).__name__ for found in gc.garbage})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not {"Request", "_Patching"} & set(kept), kept


async def test_large_objects_are_processed_outside_the_event_loop(api: Api) -> None:
    """A CRD or bundle of a megabyte is an ordinary object: it is written, read in every format, and deleted."""
    path = attacks.CONFIGMAPS.format(namespace="default")
    large = attacks.configmap("large", {f"k{number}": "v" for number in range(45_000)})
    patch, applied = b'{"data":{"z":"1"}}', attacks.configmap("large", {"k1": "2"})
    with measured_turns() as turns:
        for method, url, body, headers in (
            ("POST", path, large, {}),
            ("PUT", f"{path}/large", large, {}),
            ("PATCH", f"{path}/large", patch, {"content_type": attacks.MERGE_PATCH}),
            ("PATCH", f"{path}/large", patch, {"content_type": attacks.STRATEGIC_PATCH}),
            ("PATCH", f"{path}/large?fieldManager=f&force=true", applied, {"content_type": attacks.APPLY}),
            ("GET", f"{path}/large", None, {"accept": "application/yaml"}),
            ("GET", f"{path}/large", None, {"accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}),
            ("GET", path, None, {"accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}),
            ("DELETE", f"{path}/large", None, {}),
        ):
            response = await in_own_turns(api.send(method, url, body, **headers))
            assert response.status in (200, 201), f"{method} {url}: {response.content()[:500]!r}"
            assert turns.longest < TURN_SECONDS, f"{method} {url} {headers}: {turns.longest:.3f} s"


async def test_a_few_users_cannot_block_large_requests_of_others() -> None:
    turns = FairSemaphore()
    await turns.acquire("first")
    users = MAX_WAITING // MAX_WAITING_PER_USER
    greedy = [asyncio.create_task(turns.acquire(f"u{n % users}")) for n in range(MAX_WAITING)]
    await asyncio.sleep(0)
    other = asyncio.create_task(turns.acquire("other"))
    await asyncio.sleep(0)
    assert not other.done()
    for user in ("first", *(f"u{number}" for number in range(users))):
        turns.release(user)
    await other
    for task in greedy:
        task.cancel()


async def test_users_take_turns_at_large_requests() -> None:
    """Many large requests of one user delay another user's by at most one of them; excess ones are rejected."""
    turns, order = FairSemaphore(), list[str]()
    await turns.acquire("first")

    async def compute(user: str) -> None:
        await turns.acquire(user)
        order.append(user)
        turns.release(user)

    tasks = [asyncio.create_task(compute("greedy")) for _ in range(MAX_WAITING_PER_USER)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests):
        await turns.acquire("greedy")
    tasks.append(asyncio.create_task(compute("other")))
    await asyncio.sleep(0)
    tasks.pop(3).cancel()
    turns.release("first")
    await asyncio.gather(*tasks)
    assert order.index("other") == 1
    assert order.count("greedy") == MAX_WAITING_PER_USER - 1


# --- CEL expressions: users are administrators of their in-memory clusters -----------------------------------

QUADRATIC = "object.data.all(a, object.data.all(b, a + b != 'x'))"
ALLOWED = "authorizer.group('').resource('secrets').check('get').allowed()"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
RULES = {
    "matchConstraints": {
        "resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
        ]
    }
}
PATCHES = '[JSONPatch{op: "test", path: "/kind", value: "ConfigMap"}]'
CHANGE = {"patchType": "JSONPatch", "jsonPatch": {"expression": f"{QUADRATIC} ? {PATCHES} : {PATCHES}"}}
HOOK = {
    "name": "hook.example.com",
    "admissionReviewVersions": ["v1"],
    "sideEffects": "None",
    "failurePolicy": "Ignore",
    "clientConfig": {"url": "https://127.0.0.1:1/"},
    "rules": RULES["matchConstraints"]["resourceRules"],
    "matchConditions": [{"name": f"c{number}", "expression": QUADRATIC} for number in range(5)],
}
EXPRESSIONS: dict[str, dict[str, dict[str, Any]]] = {
    "validating policy": {
        "validatingadmissionpolicies": {
            "spec": RULES
            | {"validations": [*[{"expression": QUADRATIC}] * 5, {"expression": f"{QUADRATIC} && {ALLOWED}"}]}
        },
        "validatingadmissionpolicybindings": {"spec": {"policyName": "heavy", "validationActions": ["Deny"]}},
    },
    "mutating policy": {
        "mutatingadmissionpolicies": {
            "spec": RULES | {"failurePolicy": "Fail", "reinvocationPolicy": "Never", "mutations": [CHANGE] * 5}
        },
        "mutatingadmissionpolicybindings": {"spec": {"policyName": "heavy"}},
    },
    "conditions of a webhook": {"validatingwebhookconfigurations": {"webhooks": [HOOK]}},
}


@pytest.mark.parametrize("case", EXPRESSIONS)
async def test_no_cel_expression_blocks_the_event_loop(api: Api, case: str) -> None:
    for resource, obj in EXPRESSIONS[case].items():
        created_policy = await api.post(f"{REGISTRATION}/{resource}", {"metadata": {"name": "heavy"}} | obj)
        assert created_policy.status == 201, created_policy.message
    path = "/api/v1/namespaces/default/configmaps"
    body = attacks.configmap("heavy", {f"k{number}": "v" for number in range(150)})
    try:
        with measured_turns() as turns:
            response = await in_own_turns(api.send("POST", path, body))
        assert response.status == 201, response.content()
        assert turns.longest < TURN_SECONDS, f"{turns.longest:.3f} s of CPU in {turns.what}"
    finally:
        for resource in EXPRESSIONS[case]:
            await api.delete(f"{REGISTRATION}/{resource}/heavy")
        await api.delete(f"{path}/heavy")
