"""Command line and environment variables of a container, as the kubelet computes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from herder.engine.meta.kinds import Object
from herder.engine.runner.pod import downward
from herder.engine.runner.pod.sources import NotReady, Sources


@dataclass(frozen=True, slots=True)
class Program:
    """Local program that replaces a container image."""

    command: list[str]
    needs: tuple[str, ...] = ()  # host files to mount at their path even if the pod's user cannot reach them
    environment: Mapping[str, str] = field(default_factory=dict)


Commands = Callable[[str], Program | None]
"""Returns the program for an image name; None if the image is unknown."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")
_CONFIG_ERROR = "CreateContainerConfigError"


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by the variable's value; keep unknown names, and replace `$$` by `$`."""

    def replacement(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return variables.get(match[2], match[0])

    return _REFERENCE.sub(replacement, text)


def program_of(container: Object, commands: Commands) -> Program:
    """Return the program of the image. It is not required if the container sets `command`."""
    if container.get("command"):
        return Program([])
    program = commands(container.get("image", ""))
    if program is None:
        raise NotReady(
            "ErrImagePull",
            f'no local command is configured for image "{container.get("image", "")}": '
            'add it to the setting "runner-commands", such as {"image": ["/path/to/program"]}',
        )
    return program


def command_line(container: Object, program: Program, variables: Mapping[str, str]) -> list[str]:
    """Return the command line: `command` replaces the program's command, `args` are appended."""
    arguments = [*(container.get("command") or ()), *(container.get("args") or ())]
    return [*program.command, *(expand(argument, variables) for argument in arguments)]


async def variables_of(
    pod: Object,
    container: Object,
    sources: Sources,
    *,
    node: str,
    address: str,
    service: Mapping[str, str],
    image: Mapping[str, str],
) -> dict[str, str]:
    """Return the variables: those of the image, then envFrom, then env in order; later values may use `$(NAME)` of
    earlier ones."""
    meta = pod["metadata"]
    found: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        prefix = source.get("prefix", "")
        for key, content in (await _all_of(source, sources)).items():
            found[prefix + key] = _text(content, key)
    known = {**service, **found}
    for variable in container.get("env") or ():
        name = variable["name"]
        value: str | None
        if variable.get("valueFrom"):
            value = await _value_from(pod, container, variable["valueFrom"], sources, node=node, address=address)
            if value is None:
                continue
        else:
            value = expand(variable.get("value") or "", known)
        found[name] = known[name] = value
    base = {"PATH": DEFAULT_PATH, "HOME": "/", "HOSTNAME": pod["spec"].get("hostname") or meta["name"], **image}
    return {**base, **service, **found}


async def _all_of(source: Object, sources: Sources) -> dict[str, bytes]:
    if reference := source.get("secretRef"):
        return await sources.secret(reference["name"], optional=bool(reference.get("optional")))
    reference = source.get("configMapRef") or {}
    return await sources.config_map(reference.get("name", ""), optional=bool(reference.get("optional")))


async def _value_from(
    pod: Object, container: Object, source: Object, sources: Sources, *, node: str, address: str
) -> str | None:
    try:
        if reference := source.get("fieldRef"):
            return downward.field(pod, reference["fieldPath"], node=node, address=address)
        if reference := source.get("resourceFieldRef"):
            return downward.resource(pod, reference, container=container["name"])
    except downward.UnsupportedField as error:
        raise NotReady(_CONFIG_ERROR, str(error)) from error
    kind = "secret" if source.get("secretKeyRef") else "config map"
    reference = source.get("secretKeyRef") or source.get("configMapKeyRef")
    if not reference:
        raise NotReady(_CONFIG_ERROR, f"valueFrom is not supported: {', '.join(source)}")
    name, key, optional = reference["name"], reference["key"], bool(reference.get("optional"))
    fetch = sources.secret if kind == "secret" else sources.config_map
    content = await fetch(name, optional=optional)
    if key not in content:
        if optional:
            return None
        raise NotReady(_CONFIG_ERROR, f"couldn't find key {key} in {kind} {name}")
    return _text(content[key], key)


def _text(value: bytes, key: str) -> str:
    if b"\0" in value:
        raise NotReady(_CONFIG_ERROR, f"value of key {key} contains a NUL byte and cannot be an environment variable")
    return value.decode(errors="surrogateescape")
