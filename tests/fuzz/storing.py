"""Whatever the embedded server agreed to store, it can read, list, render, take back unchanged, and delete."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.fuzz import definitions
from tests.fuzz.cases.patches import MERGE
from tests.fuzz.generating import rich_widget
from tests.fuzz.mutating import mutated, often_mutated
from tests.fuzz.wire import Input, NoAnswer, Reply, Wire
from tests.fuzz.world import CONFIG_MAPS, DEFINITIONS, SAMPLES, SECRETS, WIDGETS, Pair, posted

_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@dataclass
class Stored:
    tried: int = 0
    kept: int = 0
    kinds: int = 0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        told = f"stored: {self.tried} tried, {self.kept} objects and {self.kinds} kinds kept and read back"
        return "\n".join(
            [f"{told}, {len(self.failures)} failures", *(f"  FAILURE {failure}" for failure in self.failures)]
        )


async def run(pair: Pair, seed: int, count: int) -> Stored:
    told = Stored()
    for number in range(count):
        dice = random.Random(f"stored/{seed}/{number}")
        told.tried += 1
        try:
            if dice.random() < 0.2:
                told.kinds += await _kind(pair.embedded, f"k{seed}-{number}", dice)
            else:
                told.kept += await _object(pair.embedded, f"s-{seed}-{number}", dice)
        except (AssertionError, NoAnswer) as failure:
            told.failures.append(f"input {number}: {failure}"[:600])
    return told


async def _object(wire: Wire, name: str, dice: random.Random) -> bool:
    where = dice.choice([WIDGETS, WIDGETS, CONFIG_MAPS, SECRETS])
    sample = rich_widget() if where == WIDGETS else SAMPLES[where]
    obj = often_mutated(sample, dice)
    if not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict):
        return False
    obj = obj | {"metadata": obj["metadata"] | {"name": name}}
    made = await wire.send(posted("stored", where, obj))
    assert made.code < 500, made.body
    if made.code != 201:
        return False
    await _check_kept(wire, where, name, msgspec.json.decode(made.body))
    return True


async def _check_kept(wire: Wire, where: str, name: str, made: Any) -> None:
    read = _decoded(await wire.send(Input("stored", "GET", f"{where}/{name}")), 200)
    assert read == made, f"read {read}, made {made}"
    listed = _decoded(await wire.send(Input("stored", "GET", f"{where}?fieldSelector=metadata.name%3D{name}")), 200)
    assert len(listed["items"]) == 1, listed
    table = Input("stored", "GET", f"{where}/{name}", headers=(("Accept", _TABLE),))
    _decoded(await wire.send(table), 200)
    again = _decoded(await wire.send(posted("stored", f"{where}/{name}", read, "PUT")), 200)
    assert again["metadata"]["resourceVersion"] == read["metadata"]["resourceVersion"], f"changed: {read} to {again}"
    if read["metadata"].get("finalizers"):
        bare = {"metadata": {"finalizers": None}}
        _decoded(await wire.send(posted("stored", f"{where}/{name}", bare, "PATCH", MERGE)), 200)
    _decoded(await wire.send(Input("stored", "DELETE", f"{where}/{name}")), 200)
    gone = await wire.send(Input("stored", "GET", f"{where}/{name}"))
    assert gone.code == 404, gone.body


async def _kind(wire: Wire, plural: str, dice: random.Random) -> bool:
    """A kind by a random definition, and an object of it."""
    crd = definitions.with_spec(definitions.schema(dice) if dice.random() < 0.5 else definitions.ruled(dice))
    group = crd["spec"]["group"]
    names = {"plural": plural, "singular": plural, "kind": plural.title().replace("-", ""), "listKind": f"{plural}list"}
    crd = crd | {"metadata": {"name": f"{plural}.{group}"}, "spec": crd["spec"] | {"names": names}}
    made = await wire.send(posted("stored", DEFINITIONS, crd))
    assert made.code < 500, made.body
    if made.code != 201:
        return False
    where = f"/apis/{group}/v1/namespaces/fuzz/{plural}"
    await _until(wire, where, 200)
    for document in (f"/openapi/v3/apis/{group}/v1", "/openapi/v2", f"/apis/{group}/v1"):
        _decoded(await wire.send(Input("stored", "GET", document)), 200)
    spec = mutated({"s": "a", "i": 1, "b": True, "n": 0.5, "l": ["a"], "m": {"k": "v"}, "o": {"x": 1}, "a": 1}, dice)
    obj = {"apiVersion": f"{group}/v1", "kind": names["kind"], "metadata": {"name": "x"}, "spec": spec}
    answered = await wire.send(posted("stored", where, obj))
    assert answered.code < 500, answered.body
    if answered.code == 201:
        await _check_kept(wire, where, "x", msgspec.json.decode(answered.body))
    _decoded(await wire.send(Input("stored", "DELETE", f"{DEFINITIONS}/{plural}.{group}")), 200)
    await _until(wire, where, 404)
    return True


async def _until(wire: Wire, url: str, code: int) -> None:
    async with asyncio.timeout(30):
        while (await wire.send(Input("stored", "GET", url))).code != code:
            await asyncio.sleep(0.01)


def _decoded(reply: Reply, code: int) -> Any:
    assert reply.code == code, f"{reply.code}: {reply.body[:400]!r}"
    return msgspec.json.decode(reply.body)
