"""Many inputs to both servers: on which they disagree, and whether the embedded server failed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from herder.engine.client.kubeconfig import RestConfig
from tests.fuzz.differences import explained
from tests.fuzz.outcomes import Outcome, same_code_and_reason, same_fields
from tests.fuzz.server_pair import Pair
from tests.fuzz.wire import Input

_EXAMPLES = 3

Note = Callable[[int, Input, Outcome, Outcome], None]


@dataclass
class Disagreement:
    """One class of disagreements: same kind of input, same two outcomes."""

    count: int = 0
    examples: list[tuple[int, Input, Outcome, Outcome]] = field(default_factory=list)


@dataclass
class Summary:
    seed: int
    inputs: Counter[str] = field(default_factory=Counter)  # by class of input
    refused: int = 0  # by the real server
    failures: list[str] = field(default_factory=list)  # a 5xx or no response
    explained: Counter[str] = field(default_factory=Counter)  # by entry in the table of differences
    other_fields: Counter[str] = field(default_factory=Counter)  # same outcome, other fields reported; by class
    disagreements: dict[tuple[str, str, str], Disagreement] = field(default_factory=dict)
    field_examples: list[tuple[int, Input, Outcome, Outcome]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.inputs.values())

    @property
    def disagreed(self) -> int:
        return sum(found.count for found in self.disagreements.values())

    def note(self, number: int, request: Input, real: Outcome, embedded: Outcome) -> None:
        self.inputs[request.about] += 1
        self.refused += real.refused
        if embedded.failed and not real.failed:
            self.failures.append(f"input {number}: {request.about}: {embedded.short}: {embedded.message[:200]}")
        elif same_code_and_reason(real, embedded):
            if not same_fields(real, embedded):
                self.other_fields[request.about] += 1
                self.field_examples.append((number, request, real, embedded))
        elif entry := explained(request, real, embedded):
            self.explained[entry] += 1
        else:
            found = self.disagreements.setdefault((request.about, real.short, embedded.short), Disagreement())
            found.count += 1
            if len(found.examples) < _EXAMPLES:
                found.examples.append((number, request, real, embedded))

    def text(self, *, examples: bool = False) -> str:
        lines = [
            f"seed {self.seed}: {self.total} inputs, {self.refused} refused, {len(self.failures)} failures, "
            f"{self.disagreed} disagreements, {self.explained.total()} explained differences, "
            f"{self.other_fields.total()} with other fields named, {self.seconds:.0f} s"
        ]
        lines += [f"  FAILURE {failure}" for failure in self.failures]
        ranked = sorted(self.disagreements.items(), key=lambda item: -item[1].count)
        for (about, real, embedded), found in ranked:
            lines.append(f"  {found.count:6} {about}: real {real or 'accepts'}, embedded {embedded or 'accepts'}")
            if examples:
                lines += [_format_example(*example) for example in found.examples]
        lines += [f"  {count:6} explained: {entry}" for entry, count in self.explained.most_common()]
        lines += [f"  {count:6} other fields: {about}" for about, count in self.other_fields.most_common()]
        if examples:
            lines += [_format_fields(*example) for example in self.field_examples[:20]]
        return "\n".join(lines)


def _format_example(number: int, request: Input, real: Outcome, embedded: Outcome) -> str:
    body = (request.body or b"")[:1500].decode("utf-8", "backslashreplace")
    return (
        f"           input {number}: {request.method} {request.url[:200]} {dict(request.headers)}\n"
        f"             {body}\n             real:     {real.message[:300]!r}\n"
        f"             embedded: {embedded.message[:300]!r}"
    )


def _format_fields(number: int, request: Input, real: Outcome, embedded: Outcome) -> str:
    return f"    fields, input {number} {request.about}: real {real.fields}, embedded {embedded.fields}"


async def send_each(
    real: RestConfig, embedded: RestConfig, inputs: Iterable[tuple[int, Input]], note: Note, *, workers: int = 4
) -> None:
    """Send each input to both servers at once, a few inputs at a time."""
    waiting = iter(inputs)

    async def work() -> None:
        pair = Pair.of(real, embedded)
        try:
            for number, request in waiting:
                note(number, request, *await pair.ask(request))
        finally:
            await pair.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())


async def run(real: RestConfig, embedded: RestConfig, inputs: Iterable[tuple[int, Input]], *, seed: int = 0) -> Summary:
    summary, started = Summary(seed), time.monotonic()
    await send_each(real, embedded, inputs, summary.note)
    summary.seconds = time.monotonic() - started
    return summary
