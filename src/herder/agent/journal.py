"""The record of the last run, on disk: written before a run begins and before its result is told."""

import json
import os
from typing import Any, Dict, Optional

from herder.agent import outputs, storing
from herder.agent.events import Evidence, Record, Result

_NAME = "run.json"


class Journal:
    def __init__(self, directory: str) -> None:
        os.makedirs(directory, 0o700, exist_ok=True)
        self._path = os.path.join(directory, _NAME)

    def write(self, record: Record) -> None:
        """That a run was begun, the Secret knows as well; a result is nowhere else before it is told."""
        storing.write(self._path, json.dumps(_to_json(record)).encode(), durable=record.result is not None)

    def read(self) -> Optional[Record]:
        """None where there is none, or none that can be read: then the Secret alone says what is to be done."""
        content = storing.read(self._path)
        try:
            return _from_json(json.loads(content.decode())) if content else None
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def _to_json(record: Record) -> Dict[str, Any]:
    value: Dict[str, Any] = dict(record._asdict())
    if record.result is not None:
        result = record.result
        value["result"] = {
            "succeeded": result.succeeded,
            "at": result.at,
            "outputs": {name: outputs.to_base64(each) for name, each in result.outputs.items()},
            "periodic": outputs.to_base64(outputs.pack_periodic(result.periodic)),
            "evidence": dict(result.evidence._asdict()) if result.evidence else None,
        }
    return value


def _from_json(value: Dict[str, Any]) -> Record:
    result = value.pop("result")
    if result is not None:
        result = Result(
            succeeded=bool(result["succeeded"]),
            at=float(result["at"]),
            outputs={name: outputs.from_base64(each) for name, each in result["outputs"].items()},
            periodic=outputs.periodic_from(outputs.from_base64(result["periodic"])),
            evidence=Evidence(**result["evidence"]) if result["evidence"] else None,
        )
    return Record(result=result, **value)
