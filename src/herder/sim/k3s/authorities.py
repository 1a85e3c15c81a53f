"""`certificate rotate-ca`: replace certificate authorities in the datastore. Servers load them when they start."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from herder.sim.host.disk import Certificate
from herder.sim.k3s.invocation import CommandFailed, Invocation
from herder.sim.k3s.snapshots import reach_server

_FIELDS = {
    "server-ca": "ServerCA",
    "client-ca": "ClientCA",
    "request-header-ca": "RequestHeaderCA",
    "etcd/peer-ca": "ETCDPeerCA",
    "etcd/server-ca": "ETCDServerCA",
}
"""The fields of messages, by file name."""


async def rotate(run: Invocation) -> None:
    """Files that do not exist are only warned about: the present ones stay, and the exit code is 0."""
    if run.is_set("help"):
        run.print(f"NAME:\n   {run.program} certificate rotate-ca\n")
        return
    path = run.option("path")
    if not path:
        raise CommandFailed('Required flag "path" not set')
    await reach_server(run)
    await asyncio.sleep(run.node.context.pace.of(2.0, run.node.context.random))
    disk, etcd = run.node.disk, run.node.cluster.etcd
    assert etcd is not None
    new: dict[str, Certificate] = {}
    for name, field in _FIELDS.items():
        for suffix, label in ((".crt", field), (".key", f"{field}Key")):
            if f"{path}/tls/{name}{suffix}" not in disk.files:
                _warn(run, label, f"{path}/tls/{name}{suffix}")
        found = disk.files.get(f"{path}/tls/{name}.crt")
        if not isinstance(found, Certificate):
            continue
        present = disk.files[f"{disk.layout.tls}/{name}.crt"]
        if not found.roots & present.roots or f"{path}/tls/{name}.key" not in disk.files:
            text = f"failed to validate new CA certificates and keys: {field}: new CA cert cannot be verified"
            raise run.server_error("certificate", f"{text} using old CA chain")
        new[name] = found
    if f"{path}/tls/service.key" not in disk.files:
        _warn(run, "ServiceKey", f"{path}/tls/service.key")
    bootstrap = etcd.bootstrap
    etcd.bootstrap = replace(
        bootstrap,
        authorities={**bootstrap.authorities, **{name: each.serial for name, each in new.items()}},
        bundles={**bootstrap.bundles, **{name: each.roots for name, each in new.items()}},
    )
    run.print("certificates saved to datastore\n")


def _warn(run: Invocation, field: str, path: str) -> None:
    run.log("warning", f"failed to stat {field}: stat {path}: no such file or directory")
