"""Apply a plan file once, whether it succeeds or not; its state is stored next to it in `*.pos`.

To apply it again, change it or remove its state. Processing it again is idempotent.
"""

import json
import os
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from herder.agent.apply import atomic_file
from herder.agent.apply import probe as probes
from herder.agent.apply.executor import NodeExecutor
from herder.agent.core import outputs, protocol
from herder.agent.core.events import AcquireInterlock, Blocked, Run, WriteFiles
from herder.agent.core.outputs import PeriodicOutput, ProbeStatus
from herder.agent.core.plan import Plan, checksum, parse
from herder.agent.local.inotify import StopSignal
from herder.agent.log import Log

POSITION = ".pos"


class Waiting(Exception):
    """The plan cannot be applied now; the reason is logged."""


class Positions:
    def __init__(self, executor: NodeExecutor, log: Log, stop_signal: StopSignal, period: float) -> None:
        self._hands = executor
        self._log = log
        self._bell = stop_signal
        self._period = period  # seconds between probe rounds, and the minimum wait

    def advance(self, path: str, probing: bool) -> Optional[float]:
        """Return after how many seconds there is more to do; None: not until the plan changes."""
        raw = atomic_file.read(path)
        if raw is None:
            return None
        plan = parse(raw)
        where = os.path.splitext(path)[0] + POSITION
        before = atomic_file.read(where) or b""
        position = _position(before)
        periodic = outputs.periodic_from(outputs.from_base64(position.get("periodicOutput")))
        after = json.dumps(self._apply(plan, raw, position, periodic, probing)).encode()
        if after != before:
            atomic_file.write(where, after, durable=True)
        return self._pause(plan, periodic)

    def _pause(self, plan: Plan, periodic: Dict[str, PeriodicOutput]) -> Optional[float]:
        if plan.probes:
            return self._period
        wall = time.time()
        due = [
            protocol.periodic_due(each, periodic.get(each.instruction.name), wall)
            for each in plan.periodic
            if each.instruction.name
        ]
        return max(self._period, min(due) - wall) if due else None

    def _apply(
        self, plan: Plan, raw: bytes, position: Dict[str, Any], periodic: Dict[str, PeriodicOutput], probing: bool
    ) -> Dict[str, Any]:
        """Return the new position; `periodic` is updated."""
        found = checksum(raw)
        new = position.get("appliedChecksum") != found
        wall = time.time()
        due = [
            index
            for index, each in enumerate(plan.periodic)
            if each.instruction.name
            and (new or protocol.periodic_due(each, periodic.get(each.instruction.name), wall) <= wall)
        ]
        said = outputs.unpack(outputs.from_base64(position.get("output")))
        if new or due:
            entered = self._hands.enter(AcquireInterlock(found, raw))
            if isinstance(entered, Blocked):
                raise Waiting(entered.reason)
            try:
                if new:
                    said.update(self._run_once(plan, found))
                self._run_periodic(plan, found, due, periodic)
            finally:
                self._hands.leave()
        result = {"appliedChecksum": found}
        if new or "output" in position:
            result["output"] = outputs.to_base64(outputs.pack(said))
        statuses = outputs.probe_statuses_from(json.dumps(position.get("probeStatus") or {}).encode())
        if new or probing:
            self._probe(plan, statuses, new)
        if statuses:
            result["probeStatus"] = json.loads(outputs.pack_probe_statuses(statuses).decode())
        result["periodicOutput"] = outputs.to_base64(outputs.pack_periodic(periodic))
        return result

    def _run_once(self, plan: Plan, found: str) -> Dict[str, str]:
        said: Dict[str, str] = {}
        problem = self._hands.write_files(WriteFiles(plan.files)).error
        if problem:
            self._log.say("error", problem)
            return said
        for index, instruction in enumerate(plan.instructions):
            finished = self._hands.run(Run(f"{found}_{index}", instruction, 0))
            if instruction.save_output and instruction.name:
                said[instruction.name] = outputs.to_base64(outputs.as_lines(finished.stdout))
            if finished.exit_code != 0:
                reason = finished.error or f"exit code {finished.exit_code}"
                self._log.say("error", f"instruction {index} '{instruction.name}': {reason}")
                break
        return said

    def _run_periodic(self, plan: Plan, found: str, due: List[int], known: Dict[str, PeriodicOutput]) -> None:
        for index in due:
            periodic = plan.periodic[index]
            name = periodic.instruction.name
            last = known.get(name)
            run = Run(f"{found}_{index}", periodic.instruction, protocol.periodic_attempt(last))
            finished = self._hands.run(run)
            known[name] = protocol.periodic_ran(periodic, last, finished, time.time())
            if finished.exit_code != 0:
                break

    def _probe(self, plan: Plan, statuses: Dict[str, ProbeStatus], new: bool) -> None:
        """Run all probes concurrently, each after its initial delay if the plan is new."""
        answers: List[Tuple[str, bool]] = []

        def ask(index: int) -> None:
            probe = plan.probes[index]
            if not self._bell.wait(probe.initial_delay if new else 0):
                answers.append((probe.name, probes.ask(probe)[0]))

        threads = [threading.Thread(target=ask, args=(index,), daemon=True) for index in range(len(plan.probes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        by_name = {probe.name: probe for probe in plan.probes}
        for name, succeeded in answers:
            statuses[name] = protocol.probe_answered(by_name[name], statuses.get(name, ProbeStatus()), succeeded)


def _position(content: bytes) -> Dict[str, Any]:
    try:
        value = json.loads(content.decode("utf-8")) if content else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
