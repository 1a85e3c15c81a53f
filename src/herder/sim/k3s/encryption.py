"""`secrets-encrypt`: rotation of the keys that encrypt Secrets."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

from herder.sim.host.etcd import EncryptionConfig
from herder.sim.k3s.invocation import Invocation, rfc3339
from herder.sim.k3s.snapshots import reach_server

_DURATION = 3.0
_RELOAD_SECONDS = 13.0
_KIND = "secret-encrypt"


async def status(run: Invocation) -> None:
    await reach_server(run)
    await _pause(run)
    config: EncryptionConfig | None = run.node.disk.encryption
    if config is None:
        run.print("Encryption Status: Disabled, no configuration file found\n")
        return
    mismatch = _mismatch(run)
    if run.option("o", run.option("output", "text")) == "json":
        run.print(_as_json(config, mismatch))
        return
    run.print(f"Encryption Status: Enabled\nCurrent Rotation Stage: {config.stage}\n")
    run.print(f"Server Encryption Hashes: {mismatch or 'All hashes match'}\n\n")
    run.print("Active  Key Type  Name\n------  --------  ----\n")
    for index, key in enumerate(config.keys):
        run.print(f" {'*' if index == 0 else ' '}      AES-CBC   {key}\n")


def _as_json(config: EncryptionConfig, mismatch: str) -> str:
    outcome: dict[str, Any] = {"hasherror": mismatch} if mismatch else {"hashmatch": True}
    shown = {"stage": config.stage, "activekey": f"AES-CBC {config.keys[0]}", "enable": True, **outcome}
    return f"{json.dumps(shown, indent=chr(9))}\n"


async def prepare(run: Invocation) -> None:
    config = await _checked(run, "start", "reencrypt_finished")
    new = f"{config.keys[0].partition('-')[0]}-{rfc3339(run.node.context.wall())}"
    _store(run, EncryptionConfig((*config.keys, new), "prepare"))
    run.print("prepare completed successfully\n")


async def rotate(run: Invocation) -> None:
    config = await _checked(run, "prepare")
    _store(run, EncryptionConfig((config.keys[-1], *config.keys[:-1]), "rotate"))
    run.print("rotate completed successfully\n")


async def reencrypt(run: Invocation) -> None:
    config = await _checked(run, "rotate")
    active = config.keys[0]
    finished = EncryptionConfig((active,), "reencrypt_finished")
    node, starts, etcd = run.node, run.node.service.starts, run.node.cluster.etcd
    assert etcd is not None
    # K3s does not persist this stage: a server that restarts is at the stage "rotate" again.
    node.disk.files[node.disk.layout.encryption] = EncryptionConfig(config.keys, "reencrypt_active")
    etcd.bootstrap = replace(etcd.bootstrap, secret_keys=etcd.bootstrap.secret_keys | {active})
    node.cluster.annotations_changed(node)

    def finish() -> None:
        if node.service.running and node.service.starts == starts:
            _store(run, finished, active)

    asyncio.get_running_loop().call_later(1.0, finish)
    run.print("reencryption started\n")


async def rotate_keys(run: Invocation) -> None:
    """Only this server loads the new key at once. Others cannot read any Secret until they restart."""
    config = await _checked(run, "start", "reencrypt_finished")
    await asyncio.sleep(_RELOAD_SECONDS)
    new = f"{config.keys[0].partition('-')[0]}-{rfc3339(run.node.context.wall())}"
    rotated = EncryptionConfig((new,), "reencrypt_finished")
    run.node.service.loaded = rotated
    _store(run, rotated, new)
    run.print("keys rotated, reencryption finished\n")


async def _checked(run: Invocation, *stages: str) -> EncryptionConfig:
    """The configuration, if the servers agree and are at one of these stages."""
    await reach_server(run)
    await _pause(run)
    config: EncryptionConfig | None = run.node.disk.encryption
    if config is None:
        raise run.server_error(_KIND, "secrets encryption is disabled")
    mismatch = _mismatch(run)
    if mismatch:
        raise run.server_error(_KIND, mismatch)
    if config.stage not in stages:
        raise run.server_error(_KIND, f"incorrect stage: {config.stage} found on node {run.node.name}")
    return config


def _mismatch(run: Invocation) -> str:
    """Compare the hashes in the annotations of all servers' Nodes."""
    own: EncryptionConfig | None = run.node.disk.encryption
    for node in sorted(run.node.cluster.nodes.values(), key=lambda node: node.name):
        other = node.disk.encryption
        if node.is_worker or not node.disk.has_joined or other is None or own is None or other.hash == own.hash:
            continue
        first, second = sorted((run.node.name, node.name))
        return f"hash does not match between {first} and {second}"
    return ""


def _store(run: Invocation, config: EncryptionConfig, *secret_keys: str) -> None:
    """Write the configuration to this server's disk and to the data that servers share."""
    node, etcd = run.node, run.node.cluster.etcd
    node.disk.files[node.disk.layout.encryption] = config
    assert etcd is not None
    etcd.bootstrap = etcd.bootstrap.with_encryption(config, *secret_keys)
    node.cluster.annotations_changed(node)


async def _pause(run: Invocation) -> None:
    await asyncio.sleep(run.node.context.pace.of(_DURATION, run.node.context.random))
