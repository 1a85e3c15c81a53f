"""Whatever the embedded server stores can be read, listed, rendered, written back unchanged, and deleted."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.fuzz.cases.patches import MERGE
from tests.fuzz.inputs import definitions
from tests.fuzz.inputs.generators import rich_widget
from tests.fuzz.inputs.mutation import mutated, mutated_repeatedly
from tests.fuzz.server_pair import CONFIG_MAPS, DEFINITIONS, SAMPLES, SECRETS, WIDGETS, Pair, posted
from tests.fuzz.wire import Input, NoResponse, Reply, Wire

_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@dataclass
class RoundtripResults:
    tried: int = 0
    kept: int = 0
    kinds: int = 0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        summary = f"stored: {self.tried} tried, {self.kept} objects and {self.kinds} kinds stored and read back"
        return "\n".join(
            [f"{summary}, {len(self.failures)} failures", *(f"  FAILURE {failure}" for failure in self.failures)]
        )


async def run(pair: Pair, seed: int, count: int) -> RoundtripResults:
    results = RoundtripResults()
    for number in range(count):
        dice = random.Random(f"stored/{seed}/{number}")
        results.tried += 1
        try:
            if dice.random() < 0.2:
                results.kinds += await _roundtrip_kind(pair.embedded, f"k{seed}-{number}", dice)
            else:
                results.kept += await _roundtrip_object(pair.embedded, f"s-{seed}-{number}", dice)
        except (AssertionError, NoResponse) as failure:
            results.failures.append(f"input {number}: {failure}"[:600])
    return results


async def _roundtrip_object(wire: Wire, name: str, dice: random.Random) -> bool:
    collection = dice.choice([WIDGETS, WIDGETS, CONFIG_MAPS, SECRETS])
    sample = rich_widget() if collection == WIDGETS else SAMPLES[collection]
    obj = mutated_repeatedly(sample, dice)
    if not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict):
        return False
    obj = obj | {"metadata": obj["metadata"] | {"name": name}}
    response = await wire.send(posted("stored", collection, obj))
    assert response.code < 500, response.body
    if response.code != 201:
        return False
    await _check_roundtrip(wire, collection, name, msgspec.json.decode(response.body))
    return True


async def _check_roundtrip(wire: Wire, collection: str, name: str, created: Any) -> None:
    read = _decoded(await wire.send(Input("stored", "GET", f"{collection}/{name}")), 200)
    assert read == created, f"read {read}, created {created}"
    listed = _decoded(
        await wire.send(Input("stored", "GET", f"{collection}?fieldSelector=metadata.name%3D{name}")), 200
    )
    assert len(listed["items"]) == 1, listed
    table = Input("stored", "GET", f"{collection}/{name}", headers=(("Accept", _TABLE),))
    _decoded(await wire.send(table), 200)
    again = _decoded(await wire.send(posted("stored", f"{collection}/{name}", read, "PUT")), 200)
    assert again["metadata"]["resourceVersion"] == read["metadata"]["resourceVersion"], f"changed: {read} to {again}"
    if read["metadata"].get("finalizers"):
        bare = {"metadata": {"finalizers": None}}
        _decoded(await wire.send(posted("stored", f"{collection}/{name}", bare, "PATCH", MERGE)), 200)
    _decoded(await wire.send(Input("stored", "DELETE", f"{collection}/{name}")), 200)
    deleted = await wire.send(Input("stored", "GET", f"{collection}/{name}"))
    assert deleted.code == 404, deleted.body


async def _roundtrip_kind(wire: Wire, plural: str, dice: random.Random) -> bool:
    """Create a kind with a random definition, and an object of it."""
    crd = definitions.with_spec(definitions.schema(dice) if dice.random() < 0.5 else definitions.schema_with_rule(dice))
    group = crd["spec"]["group"]
    names = {"plural": plural, "singular": plural, "kind": plural.title().replace("-", ""), "listKind": f"{plural}list"}
    crd = crd | {"metadata": {"name": f"{plural}.{group}"}, "spec": crd["spec"] | {"names": names}}
    response = await wire.send(posted("stored", DEFINITIONS, crd))
    assert response.code < 500, response.body
    if response.code != 201:
        return False
    collection = f"/apis/{group}/v1/namespaces/fuzz/{plural}"
    await _wait_for_code(wire, collection, 200)
    for document in (f"/openapi/v3/apis/{group}/v1", "/openapi/v2", f"/apis/{group}/v1"):
        _decoded(await wire.send(Input("stored", "GET", document)), 200)
    spec = mutated({"s": "a", "i": 1, "b": True, "n": 0.5, "l": ["a"], "m": {"k": "v"}, "o": {"x": 1}, "a": 1}, dice)
    obj = {"apiVersion": f"{group}/v1", "kind": names["kind"], "metadata": {"name": "x"}, "spec": spec}
    object_response = await wire.send(posted("stored", collection, obj))
    assert object_response.code < 500, object_response.body
    if object_response.code == 201:
        await _check_roundtrip(wire, collection, "x", msgspec.json.decode(object_response.body))
    _decoded(await wire.send(Input("stored", "DELETE", f"{DEFINITIONS}/{plural}.{group}")), 200)
    await _wait_for_code(wire, collection, 404)
    return True


async def _wait_for_code(wire: Wire, url: str, code: int) -> None:
    async with asyncio.timeout(30):
        while (await wire.send(Input("stored", "GET", url))).code != code:
            await asyncio.sleep(0.01)


def _decoded(reply: Reply, code: int) -> Any:
    assert reply.code == code, f"{reply.code}: {reply.body[:400]!r}"
    return msgspec.json.decode(reply.body)
