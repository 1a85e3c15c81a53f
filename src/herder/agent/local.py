"""Plans from files of a directory: `*.plan`, each with its state beside it in `*.pos`.

A plan is applied once, whether it succeeds or not; who wants it applied again changes it, or removes its state.
"""

import json
import os
import threading
import time
from typing import Any, Dict, List, Set, Tuple

from herder.agent import outputs, probes, rules, storing
from herder.agent.events import Blocked, Enter, Run, WriteFiles
from herder.agent.hands import Hands
from herder.agent.log import Log
from herder.agent.outputs import PeriodicOutput, ProbeStatus
from herder.agent.plan import Plan, PlanError, checksum, parse

_PERIOD = 5.0
_PATIENCE_AT_STOP = 30.0
_PLAN, _POSITION, _SKIP = ".plan", ".pos", ".skip"


class Local:
    def __init__(self, directory: str, hands: Hands, log: Log) -> None:
        self._directory = directory
        self._hands = hands
        self._log = log
        self._stopped = threading.Event()

    def run(self) -> None:
        """Until `stop`."""
        os.makedirs(self._directory, 0o700, exist_ok=True)
        while not self._stopped.is_set():
            for path in plans_in(self._directory):
                self._look_at(path)
            self._hands.tidy()
            self._stopped.wait(_PERIOD)
        self._hands.abandon()

    def stop(self) -> None:
        """An instruction that runs gets half a minute to end; else it is ended, and counts as failed."""
        self._stopped.set()
        overdue = threading.Timer(_PATIENCE_AT_STOP, self._hands.abandon)
        overdue.daemon = True
        overdue.start()

    def _look_at(self, path: str) -> None:
        try:
            raw = storing.read(path)
            if raw is None:
                return
            plan = parse(raw)
            where = path[: -len(_PLAN)] + _POSITION
            before = storing.read(where) or b""
            after = json.dumps(self._apply(plan, raw, _position(before))).encode()
            if after != before:
                storing.write(where, after, durable=True)
        except PlanError as error:
            self._log.say("error", f"{path}: {error}")
        except (OSError, _Waiting) as error:
            self._log.say("warning", f"{path}: {error}")

    def _apply(self, plan: Plan, raw: bytes, position: Dict[str, Any]) -> Dict[str, Any]:
        """The new position."""
        found = checksum(raw)
        new = position.get("appliedChecksum") != found
        periodic = outputs.periodic_from(outputs.from_base64(position.get("periodicOutput")))
        wall = time.time()
        due = [
            index
            for index, each in enumerate(plan.periodic)
            if each.instruction.name
            and (new or rules.periodic_due(each, periodic.get(each.instruction.name), wall) <= wall)
        ]
        said = outputs.unpack(outputs.from_base64(position.get("output")))
        if new or due:
            entered = self._hands.enter(Enter(found, raw))
            if isinstance(entered, Blocked):
                raise _Waiting(entered.reason)
            try:
                if new:
                    said.update(self._run_once(plan, found))
                self._run_periodic(plan, found, due, periodic)
            finally:
                self._hands.leave()
        result = {"appliedChecksum": found}
        if new or "output" in position:
            result["output"] = outputs.to_base64(outputs.pack(said))
        statuses = self._probe(plan, position.get("probeStatus") or {}, new)
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
            run = Run(f"{found}_{index}", periodic.instruction, rules.periodic_attempt(last))
            finished = self._hands.run(run)
            known[name] = rules.periodic_ran(periodic, last, finished, time.time())
            if finished.exit_code != 0:
                break

    def _probe(self, plan: Plan, told: Dict[str, Any], new: bool) -> Dict[str, ProbeStatus]:
        """All at once, each after its own delay where the plan is new."""
        statuses = outputs.probe_statuses_from(json.dumps(told).encode())
        answers: List[Tuple[str, bool]] = []

        def ask(index: int) -> None:
            probe = plan.probes[index]
            if not self._stopped.wait(probe.initial_delay if new else 0):
                answers.append((probe.name, probes.ask(probe)[0]))

        threads = [threading.Thread(target=ask, args=(index,), daemon=True) for index in range(len(plan.probes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        by_name = {probe.name: probe for probe in plan.probes}
        for name, succeeded in answers:
            statuses[name] = rules.probe_answered(by_name[name], statuses.get(name, ProbeStatus()), succeeded)
        return statuses


class _Waiting(Exception):
    """Not now; the reason is for the log."""


def plans_in(directory: str) -> List[str]:
    """In the order of their paths, without those that are hidden or have a file beside them that says to skip them."""
    found: List[str] = []
    skipped: Set[str] = set()
    for folder, _, names in os.walk(directory):
        for name in names:
            if name.endswith(_SKIP):
                skipped.add(name[: -len(_SKIP)])
            elif name.endswith(_PLAN) and not name.startswith("."):
                found.append(os.path.join(folder, name))
    return sorted(path for path in found if os.path.basename(path) not in skipped)


def _position(content: bytes) -> Dict[str, Any]:
    try:
        value = json.loads(content.decode("utf-8")) if content else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
