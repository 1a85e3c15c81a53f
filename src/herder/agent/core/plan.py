"""Parse a plan: missing fields have defaults, unknown ones are ignored, wrong types are errors."""

import hashlib
import json
from typing import Any, Dict, List, NamedTuple

DEFAULT_PERIOD = 600


class PlanError(ValueError):
    """The plan is invalid; the message names the field."""


class File(NamedTuple):
    path: str
    content: str  # base64
    directory: bool
    uid: int
    gid: int
    permissions: str  # octal; empty: default
    delete: bool


class Instruction(NamedTuple):
    name: str
    image: str
    command: str
    args: List[str]
    env: List[str]
    save_output: bool
    timeout: int  # seconds, 0 for none; our own field, which other agents ignore


class PeriodicInstruction(NamedTuple):
    instruction: Instruction
    period: int
    save_stderr: bool


class Probe(NamedTuple):
    name: str
    initial_delay: int
    timeout: int
    success_threshold: int
    failure_threshold: int
    url: str
    insecure: bool
    client_cert: str
    client_key: str
    ca_cert: str


class Plan(NamedTuple):
    files: List[File]
    instructions: List[Instruction]
    periodic: List[PeriodicInstruction]
    probes: List[Probe]  # by name


def checksum(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def parse(raw: bytes) -> Plan:
    try:
        content = json.loads(raw.decode("utf-8"))
    except ValueError as error:
        raise PlanError(f"the plan is not valid JSON: {error}") from error
    plan = _Fields(content, "plan")
    return Plan(
        files=[_file(each) for each in plan.objects("files")],
        instructions=[_instruction(each) for each in plan.objects("instructions")],
        periodic=[_periodic(each) for each in plan.objects("periodicInstructions")],
        probes=[_probe(name, each) for name, each in sorted(plan.named("probes").items())],
    )


def images_of(raw: bytes) -> List[str]:
    """Return the images of one-time and periodic instructions."""
    plan = parse(raw)
    instructions = [*plan.instructions, *(each.instruction for each in plan.periodic)]
    return sorted({each.image for each in instructions if each.image})


class _Fields:
    """A JSON object, read field by field; null counts as missing."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise PlanError(f"{where}: expected an object, found {_kind(value)}")
        self.values: Dict[str, Any] = value
        self.where = where

    def text(self, name: str) -> str:
        return str(self._get(name, str, ""))

    def number(self, name: str) -> int:
        return int(self._get(name, int, 0))

    def flag(self, name: str) -> bool:
        return bool(self._get(name, bool, False))

    def texts(self, name: str) -> List[str]:
        found = self._get(name, list, [])
        for index, each in enumerate(found):
            if not isinstance(each, str):
                raise PlanError(f"{self.where}.{name}[{index}]: expected text, found {_kind(each)}")
        return list(found)

    def object(self, name: str) -> "_Fields":
        return _Fields(self._get(name, dict, {}), self._path(name))

    def objects(self, name: str) -> "List[_Fields]":
        found = self._get(name, list, [])
        return [_Fields(each, f"{self._path(name)}[{index}]") for index, each in enumerate(found)]

    def named(self, name: str) -> "Dict[str, _Fields]":
        found = self._get(name, dict, {})
        return {key: _Fields(each, f"{self._path(name)}.{key}") for key, each in found.items()}

    def _get(self, name: str, kind: type, default: Any) -> Any:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise PlanError(f"{self._path(name)}: expected {_TYPE_NAMES[kind]}, found {_kind(value)}")
        return value

    def _path(self, name: str) -> str:
        return f"{self.where}.{name}"


_TYPE_NAMES = {str: "text", int: "a whole number", bool: "true or false", list: "a list", dict: "an object"}


def _kind(value: Any) -> str:
    return "null" if value is None else _TYPE_NAMES.get(type(value), "a number")


def _file(fields: _Fields) -> File:
    return File(
        path=fields.text("path"),
        content=fields.text("content"),
        directory=fields.flag("directory"),
        uid=fields.number("uid"),
        gid=fields.number("gid"),
        permissions=fields.text("permissions"),
        delete=fields.text("action") == "delete",
    )


def _instruction(fields: _Fields) -> Instruction:
    return Instruction(
        name=fields.text("name"),
        image=fields.text("image"),
        command=fields.text("command"),
        args=fields.texts("args"),
        env=fields.texts("env"),
        save_output=fields.flag("saveOutput"),
        timeout=fields.number("timeoutSeconds"),
    )


def _periodic(fields: _Fields) -> PeriodicInstruction:
    return PeriodicInstruction(
        instruction=_instruction(fields),
        period=fields.number("periodSeconds") or DEFAULT_PERIOD,
        save_stderr=fields.flag("saveStderrOutput"),
    )


def _probe(name: str, fields: _Fields) -> Probe:
    request = fields.object("httpGet")
    return Probe(
        name=name,
        initial_delay=fields.number("initialDelaySeconds"),
        timeout=fields.number("timeoutSeconds"),
        success_threshold=fields.number("successThreshold") or 1,
        failure_threshold=fields.number("failureThreshold") or 3,
        url=request.text("url"),
        insecure=request.flag("insecure"),
        client_cert=request.text("clientCert"),
        client_key=request.text("clientKey"),
        ca_cert=request.text("caCert"),
    )
