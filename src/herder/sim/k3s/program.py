"""The programs `k3s` and `rke2`: dispatch of subcommands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from herder.agent.core.events import Finished
from herder.sim.host.command import Command
from herder.sim.k3s import authorities, certificates, encryption, reset, snapshots
from herder.sim.k3s.invocation import CommandFailed, Invocation, log_line, parse

Subcommand = Callable[[Invocation], Awaitable[None]]

_SUBCOMMANDS: dict[str, dict[str, Subcommand]] = {
    "etcd-snapshot": {
        "save": snapshots.save,
        "ls": snapshots.show,
        "list": snapshots.show,
        "delete": snapshots.delete,
        "prune": snapshots.prune,
    },
    "certificate": {"check": certificates.check, "rotate": certificates.rotate, "rotate-ca": authorities.rotate},
    "secrets-encrypt": {
        "status": encryption.status,
        "prepare": encryption.prepare,
        "rotate": encryption.rotate,
        "reencrypt": encryption.reencrypt,
        "rotate-keys": encryption.rotate_keys,
    },
}


async def run(command: Command) -> Finished:
    """Run a subcommand. Errors end with exit code 1 and a line at level fatal."""
    noun, *rest = (*command.arguments, "")
    verbs = _SUBCOMMANDS.get(noun)
    if noun == "server":
        action: Subcommand = reset.run
        arguments = rest[:-1]
    elif verbs is not None and rest[0] in verbs:
        action, arguments = verbs[rest[0]], rest[1:-1]
    else:
        known = noun if verbs is None else f"{noun} {rest[0]}"
        return Finished(127, stderr=f"{command.program} {known}: not simulated\n".encode())
    invocation = Invocation(command)
    try:
        invocation = parse(command, arguments)
        await action(invocation)
    except CommandFailed as error:
        fatal = log_line(command.node.context.wall(), "fatal", str(error))
        return Finished(1, invocation.stdout.encode(), (invocation.stderr + fatal).encode())
    return invocation.finish()
