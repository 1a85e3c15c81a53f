"""Simulated etcd: clusters with an ID and members, their content, and what K3s keeps in them for its servers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from herder.api.rke.machines.strategy import quorum
from herder.engine.apiserver.build import ApiServer
from herder.engine.apiserver.registry.storage_codec import decode, encoder
from herder.engine.store import Change, Delete, Put, Record

if TYPE_CHECKING:
    from herder.sim.nodes import SimulatedNode

FIRST_KEY = "aescbckey"
_RECORD_SIZE = 1024


@dataclass(frozen=True, slots=True)
class Content:
    """All objects of a cluster at one revision."""

    revision: int
    records: tuple[Record, ...] = field(repr=False)

    @property
    def size(self) -> int:
        """An estimate: records contain certificates, whose length differs between two runs of a seed."""
        return len(self.records) * _RECORD_SIZE


def freeze(server: ApiServer) -> Content:
    store = server.deps.store
    return Content(store.revision, tuple(store.all()))


async def load(server: ApiServer, content: Content) -> None:
    """Replace everything that the API server stores.

    Revisions continue to grow, as after a restore with `--bump-revision`, so that clients notice the change.
    """
    store = server.deps.store
    kept = {record.key for record in content.records}
    changes: list[Change] = [Put(each.key, encoder(decode(each))) for each in content.records]
    changes += [Delete(each.key, encoder(decode(each))) for each in store.all() if each.key not in kept]
    await store.commit(*changes)


@dataclass(frozen=True, slots=True)
class EncryptionConfig:
    """Keys for Secrets, the active one first, and the stage of their rotation."""

    keys: tuple[str, ...] = (FIRST_KEY,)
    stage: str = "start"

    @property
    def hash(self) -> str:
        return f"{self.stage}-{hashlib.sha256(repr((self.keys, self.stage)).encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Data that servers share through etcd, encrypted with the token."""

    token: str = ""
    authorities: dict[str, int] = field(default_factory=dict)  # serials of the CAs, by file name
    encryption: EncryptionConfig | None = None
    secret_keys: frozenset[str] = frozenset()  # with which the stored Secrets are encrypted
    bundles: dict[str, frozenset[int]] = field(default_factory=dict)
    """Serials of all certificates in the files of rotated CAs: what the file of a CA trusts."""

    def bundle(self, authority: str) -> frozenset[int]:
        return self.bundles.get(authority) or frozenset({self.authorities.get(authority, 0)})

    def with_encryption(self, config: EncryptionConfig, *secret_keys: str) -> Bootstrap:
        return replace(self, encryption=config, secret_keys=frozenset(secret_keys) or self.secret_keys)


@dataclass(eq=False, slots=True)
class EtcdCluster:
    """`content` is None for an empty cluster; while the cluster is served, its API server has the content."""

    id: str
    members: dict[str, SimulatedNode] = field(default_factory=dict)  # by Node, running or not
    content: Content | None = None
    bootstrap: Bootstrap = field(default_factory=Bootstrap)
    has_served: bool = False  # whether a member has ever started; a restore may be undone before

    @property
    def voters(self) -> list[SimulatedNode]:
        return [node for node in self.members.values() if node.running]

    @property
    def has_quorum(self) -> bool:
        return bool(self.members) and len(self.voters) >= quorum(len(self.members))

    @property
    def serves(self) -> bool:
        """Whether a quorum of its members runs on the data of this cluster, even if another one replaced it."""
        running = [node for node in self.voters if node.disk.etcd is not None and node.disk.etcd.cluster is self]
        return bool(running) and len(running) >= quorum(len(self.members))


@dataclass(eq=False, slots=True)
class EtcdData:
    """The data directory of one member."""

    cluster: EtcdCluster
    member: str
