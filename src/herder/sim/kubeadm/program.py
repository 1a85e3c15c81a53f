"""The program `kubeadm`, as far as tasks of operations call it, and the program that encrypts Secrets again."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Sequence
from dataclasses import replace

from herder.agent.core.events import Finished
from herder.sim.host.certificates import KUBEADM_NAMES, leaves, new_certificate
from herder.sim.host.command import Command
from herder.sim.host.managed_keys import write_manifest

INIT_CONFIG = "/etc/rancher/kubeadm/init.yaml"
REENCRYPT = "/var/lib/rancher/kubeadm/reencrypt.py"
_DURATION = 2.0


async def run(command: Command) -> Finished:
    node, (*words,) = command.node, command.arguments
    if node.disk.installed is None or node.runtime != "kubeadm":
        return command.not_found()
    await asyncio.sleep(node.context.pace.of(_DURATION, node.context.random))
    match words:
        case ["certs", "renew", name, "--config", config]:
            return _renew(command, name, config)
        case ["init", "phase", "control-plane", "apiserver", "--config", config]:
            if config not in node.disk.files or node.is_worker:
                return Finished(1, stderr=f"unable to read config from {config!r}\n".encode())
            write_manifest(node)
            return Finished(0)
    return Finished(1, stderr=f"kubeadm {' '.join(words[:2])}: not simulated\n".encode())


def _renew(command: Command, name: str, config: str) -> Finished:
    """Sign another certificate with the CA on this server. Missing ones are skipped, as by the real program."""
    node, etcd = command.node, command.node.cluster.etcd
    if config not in node.disk.files or etcd is None:
        return Finished(1, stderr=f"unable to read config from {config!r}\n".encode())
    if name not in KUBEADM_NAMES:
        return Finished(1, stderr=f"unknown certificate {name}\n".encode())
    for path, leaf in leaves(node):
        if leaf[0] == KUBEADM_NAMES[name] and f"{path}.crt" in node.disk.files:
            node.disk.files[f"{path}.crt"] = new_certificate(node, leaf)
    return Finished(0, f"certificate {name} renewed\n".encode())


async def reencrypt(command: Command, arguments: Sequence[str]) -> Finished:
    """Rewrite all Secrets through this server's API. Other servers write with their own first key meanwhile."""
    node, etcd = command.node, command.node.cluster.etcd
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    if set(given) != {"--kubeconfig", "--prefix"}:
        return Finished(2, stderr=b"reencrypt: unknown arguments\n")
    if REENCRYPT not in node.disk.files:
        return command.not_found(posixpath.basename(REENCRYPT))
    await asyncio.sleep(node.context.pace.of(_DURATION, node.context.random))
    if etcd is None or not node.running or not node.cluster.has_api:
        return Finished(1, stderr=b"Secrets cannot be read: the connection to the server was refused\n")
    if not node.reads_secrets:
        return Finished(1, stderr=b"Secrets cannot be read: no matching key was found\n")
    servers = [each for each in node.cluster.nodes.values() if each.running and each.has_api]
    used = {each.service.loaded.keys[0] for each in servers if each.service.loaded is not None}
    etcd.bootstrap = replace(etcd.bootstrap, secret_keys=frozenset(used))
    wanted = given["--prefix"].rstrip(":").rpartition(":")[2]
    if any(key.partition(":")[0] != wanted for key in used):
        return Finished(1, stderr=b"1 Secrets are not encrypted with the new key\n")
    return Finished(0, b"Secrets are encrypted\n")
