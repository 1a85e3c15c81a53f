"""Downward API: pod fields and container resources as environment variables and files."""

from __future__ import annotations

import json
import os
import re
from decimal import ROUND_CEILING, Decimal

from herder.engine.meta import quantity
from herder.engine.meta.kinds import Object

_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]\Z")


class UnsupportedField(ValueError):
    """A field or resource that the downward API does not provide."""


def field(pod: Object, path: str, *, node: str, address: str) -> str:
    meta, spec = pod["metadata"], pod["spec"]
    if match := _SUBSCRIPT.match(path):
        return str((meta.get(match[1]) or {}).get(match[2], ""))
    if path in {"metadata.labels", "metadata.annotations"}:
        values = meta.get(path.removeprefix("metadata.")) or {}
        return "\n".join(f"{key}={json.dumps(values[key])}" for key in sorted(values))
    found = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta.get("namespace", ""),
        "metadata.uid": meta["uid"],
        "spec.nodeName": node,
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.hostIP": address,
        "status.hostIPs": address,
        "status.podIP": address,
        "status.podIPs": address,
    }
    if path not in found:
        raise UnsupportedField(f'fieldRef "{path}" is not supported')
    return str(found[path])


def resource(pod: Object, reference: Object, *, container: str = "") -> str:
    """Return a container's request or limit in units of the divisor, rounded up; the host's capacity if none is set."""
    name = reference.get("containerName") or container
    containers = [*pod["spec"].get("containers", ()), *(pod["spec"].get("initContainers") or ())]
    holder = next((item for item in containers if item["name"] == name), None)
    if holder is None:
        raise UnsupportedField(f'resourceFieldRef: no container "{name}"')
    kind, _, what = str(reference.get("resource", "")).partition(".")
    given = ((holder.get("resources") or {}).get(kind) or {}).get(what)
    if given is None:
        if kind == "requests":
            given = "0"
        elif what == "cpu":
            given = str(os.cpu_count() or 1)
        elif what == "memory":
            given = str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        else:
            raise UnsupportedField(f'resourceFieldRef "{reference.get("resource")}" is not supported')
    divisor = amount(reference.get("divisor") or "1") or Decimal(1)
    return str((amount(given) / divisor).to_integral_value(ROUND_CEILING))


def amount(text: str | int | float) -> Decimal:
    parsed = quantity.decode(text)
    return Decimal(parsed.unscaled).scaleb(parsed.scale)
