"""What a container runs and with which variables, as the kubelet would have it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from herder.engine.meta.kinds import Object
from herder.engine.runner import downward
from herder.engine.runner.sources import NotReady, Sources


@dataclass(frozen=True, slots=True)
class Program:
    """What stands for an image on this host."""

    command: list[str]
    needs: tuple[str, ...] = ()  # of the host's files: seen where they are, though the pod's user could not get there
    environment: Mapping[str, str] = field(default_factory=dict)


Commands = Callable[[str], Program | None]
"""Image name → the program that stands for it; None for an image that is not known."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")
_CONFIG_ERROR = "CreateContainerConfigError"


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` by its value; unknown names stay as they are, `$$` is one `$`."""

    def replacement(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return variables.get(match[2], match[0])

    return _REFERENCE.sub(replacement, text)


def program_of(container: Object, commands: Commands) -> Program:
    """The image's own, unless the container brings a `command`: then the image need not be known."""
    if container.get("command"):
        return Program([])
    program = commands(container.get("image", ""))
    if program is None:
        raise NotReady(
            "ErrImagePull",
            f'no local command stands for image "{container.get("image", "")}": '
            'add it to the setting "runner-commands", such as {"image": ["/path/to/program"]}',
        )
    return program


def command_line(container: Object, program: Program, variables: Mapping[str, str]) -> list[str]:
    """The image's own command is the entrypoint: `command` replaces it, `args` follow it."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    return [*program.command, *(expand(word, variables) for word in words)]


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
    """What the image brings, then envFrom, then env in order; a later one may use `$(NAME)` of those before it."""
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
    except downward.Unknown as error:
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
        raise NotReady(_CONFIG_ERROR, f"the value of key {key} has a zero byte and cannot be a variable")
    return value.decode(errors="surrogateescape")
