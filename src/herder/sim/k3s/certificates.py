"""`certificate check` and `certificate rotate`."""

from __future__ import annotations

import asyncio
import json
import posixpath
from collections.abc import Iterator
from datetime import UTC, datetime

from herder.sim.host.certificates import SHARED_KEYS, leaves
from herder.sim.host.disk import Certificate
from herder.sim.k3s.invocation import CommandFailed, Invocation, rfc3339

_DAY = 86400.0
_WARNING = 120 * _DAY
SERVICES: dict[str, tuple[str, ...]] = {
    "admin": ("client-admin",),
    "api-server": ("client-kube-apiserver", "serving-kube-apiserver"),
    "controller-manager": ("client-controller", "kube-controller-manager/kube-controller-manager"),
    "scheduler": ("client-scheduler", "kube-scheduler/kube-scheduler"),
    "supervisor": ("client-supervisor",),
    "{}-controller": ("client-{}-controller",),
    "{}-server": (),
    "cloud-controller": ("client-{}-cloud-controller",),
    "etcd": ("etcd/client", "etcd/server-client", "etcd/peer-server-client"),
    "auth-proxy": ("client-auth-proxy",),
    "kubelet": ("client-kubelet", "serving-kubelet"),
    "kube-proxy": ("client-kube-proxy",),
}
"""Services, and their certificates."""
_OF_AGENTS = ("kubelet", "{}-controller", "kube-proxy")


async def check(run: Invocation) -> None:
    services = _services(run)
    found = [
        (f"{posixpath.basename(path)}.crt", run.node.disk.files[f"{path}.crt"])
        for path in _paths(run, services)
        if f"{path}.crt" in run.node.disk.files
    ]
    output = run.option("o", run.option("output", "text"))
    if output not in ("text", "table", "json"):
        raise CommandFailed(f"invalid output format {output}")
    await _pause(run)
    if output == "json":
        shown = {"Certificates": [_as_json(run, *each) for each in found]}
        run.print(f"{json.dumps(shown, separators=(',', ':'))}\n")
    elif output == "table":
        run.print(_table(run, found))
    else:
        _announce(run, "checking")
        for name, each in found:
            _log_certificate(run, name, each.subject, each.usage, each.expires)
            _log_certificate(run, name, each.issuer, "CertSign", each.expires + 9 * 365 * _DAY)


def _log_certificate(run: Invocation, name: str, subject: str, usage: str, expires: float) -> None:
    level, state = ("info", "ok") if _status(run, expires) == "OK" else ("warning", "within 120 days of expiration")
    verb = "expires" if expires > run.node.context.wall() else "expired"
    run.log(level, f"{name}: certificate {subject} ({usage}) is {state}, {verb} at {rfc3339(expires)}")


def _status(run: Invocation, expires: float) -> str:
    left = expires - run.node.context.wall()
    return "EXPIRED" if left <= 0 else "WARNING" if left < _WARNING else "OK"


def _as_json(run: Invocation, name: str, certificate: Certificate) -> dict[str, object]:
    return {
        "Filename": name,
        "Subject": certificate.subject,
        "Issuer": certificate.issuer,
        "Usages": certificate.usage.split(","),
        "ExpiryTime": rfc3339(certificate.expires),
        "ResidualTime": int((certificate.expires - run.node.context.wall()) * 1e9),
        "Status": _status(run, certificate.expires),
    }


def _table(run: Invocation, found: list[tuple[str, Certificate]]) -> str:
    head = ("FILENAME", "SUBJECT", "USAGES", "EXPIRES", "RESIDUAL TIME", "STATUS")
    rows = [
        (
            name,
            each.subject,
            each.usage,
            datetime.fromtimestamp(each.expires, UTC).strftime("%b %d, %Y %H:%M UTC"),
            _residual(each.expires - run.node.context.wall()),
            _status(run, each.expires),
        )
        for name, each in found
    ]
    lines = [head, tuple("-" * len(each) for each in head), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head) - 1)]
    text = ["   ".join((*(c.ljust(w) for c, w in zip(line, widths, strict=False)), line[-1])) for line in lines]
    return "\n" + "".join(f"{line}\n" for line in text)


def _residual(seconds: float) -> str:
    days = int(seconds // _DAY)
    if days >= 364:
        return f"{(days + 1) // 365} year{'s' if days >= 729 else ''}"
    return f"{days} days"


async def rotate(run: Invocation) -> None:
    """Remove certificates and keys, also while the service runs; its next start issues them anew."""
    services = _services(run)
    await _pause(run)
    node, disk, layout = run.node, run.node.disk, run.node.disk.layout
    paths = [f"{path}{suffix}" for path in _paths(run, services) for suffix in (".crt", ".key")]
    paths += _shared_keys(run, services)
    _announce(run, "rotating")
    if not node.is_worker and not run.flags.get("s"):
        run.log("info", "Rotating dynamic listener certificate")
    for service in services:
        if service != "{}-server":
            run.log("info", f"Rotating certificates for {service.format(run.program)}")
    owner = "agent" if node.is_worker else "server"
    backup = f"{layout.data}/{owner}/tls-{int(node.context.wall())}"
    kept = [each for each in paths if each in disk.files]
    if not node.is_worker:
        kept += [each for each in disk.below(layout.tls) if each not in kept]
    for path in kept:
        disk.files[f"{backup}/{path.removeprefix(layout.tls).removeprefix(layout.data).lstrip('/')}"] = disk.files[path]
    for path in paths:
        disk.files.pop(path, None)
    program = run.program
    run.log(
        "info",
        f"Successfully backed up certificates to {backup}, please restart {program} server or agent to rotate "
        "certificates",
    )


def _services(run: Invocation) -> list[str]:
    known = {service.format(run.program): service for service in SERVICES}
    named = [*run.flags.get("s", ()), *run.flags.get("service", ())]
    for name in named:
        if name not in known:
            raise CommandFailed(f"service {name} is not recognized")
    if named:
        return [known[name] for name in named]
    return list(_OF_AGENTS if run.node.is_worker else SERVICES)


def _paths(run: Invocation, services: list[str]) -> Iterator[str]:
    """Paths without suffix of the certificates of these services that this machine can have."""
    wanted = {name for service in services for name in SERVICES[service]}
    yield from (path for path, leaf in leaves(run.node) if leaf[0] in wanted)


def _shared_keys(run: Invocation, services: list[str]) -> list[str]:
    if run.node.is_worker:
        return []
    wanted = {name for service in services for name in SERVICES[service]}
    return [f"{run.node.disk.layout.tls}/{key.format(run.program)}.key" for key in SHARED_KEYS if key in wanted]


def _announce(run: Invocation, action: str) -> None:
    if run.flags.get("s") or run.flags.get("service"):
        return
    if run.node.is_worker:
        run.log("info", f"Agent detected, {action} agent certificates")
    else:
        run.log("info", f"Server detected, {action} agent and server certificates")


async def _pause(run: Invocation) -> None:
    await asyncio.sleep(run.node.context.pace.of(0.3, run.node.context.random))
