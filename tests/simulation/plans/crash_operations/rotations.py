"""Rotations of certificates, authorities and encryption keys, and redeployments of node agents."""

from __future__ import annotations

from typing import Any

from herder.api.rke import operations
from herder.api.rke.services import NO_AUTHORITY_ROTATION
from herder.sim.host.certificates import leaves
from tests.simulation.plans.crash_operations.operation import CrashedOperation
from tests.simulation.plans.operations.test_redeployments import serve, versions
from tests.simulation.plans.operations.test_rotations import loaded_keys


class Certificates(CrashedOperation):
    kind = operations.CERTIFICATES
    title = "Rotation of certificates"

    async def prepare(self) -> None:
        await super().prepare()
        self.old = self._serials()

    def _serials(self) -> dict[tuple[str, str], Any]:
        found = {}
        for node in self.cluster.simulation.nodes:
            for path, _ in leaves(node):
                certificate: Any = node.disk.files.get(f"{path}.crt")
                if certificate is not None:
                    found[(node.name, path)] = certificate.serial
        return found

    async def is_achieved(self) -> bool:
        now = self._serials()
        return now.keys() == self.old.keys() and all(now[each] != old for each, old in self.old.items())


class CertificateAuthorities(Certificates):
    kind = operations.AUTHORITIES
    title = "Rotation of certificate authorities"

    @classmethod
    def reason(cls, distribution: str, phase: str) -> str:
        if distribution in NO_AUTHORITY_ROTATION:
            return "– admission refuses it: the distribution cannot rotate them"
        return super().reason(distribution, phase)

    async def prepare(self) -> None:
        await super().prepare()
        self.first = self._present()

    def _present(self) -> dict[str, int]:
        etcd = self.cluster.simulation.sim.downstream.etcd
        assert etcd is not None
        return etcd.bootstrap.authorities

    async def is_achieved(self) -> bool:
        present = self._present()
        loaded = all(
            node.service.trust[name].bundle >= {serial, self.first[name]}
            for node in self.cluster.simulation.nodes
            for name, serial in present.items()
        )
        unused = [path for node in self.cluster.servers for path in node.disk.files if "/new-authorities/" in path]
        is_new = not set(present.values()) & set(self.first.values())
        return loaded and is_new and not unused and await super().is_achieved()


class EncryptionKeys(CrashedOperation):
    kind = operations.ENCRYPTION_KEYS
    title = "Rotation of encryption keys"

    async def prepare(self) -> None:
        await super().prepare()
        self.old = self._used()

    def _used(self) -> frozenset[str]:
        etcd = self.cluster.simulation.sim.downstream.etcd
        assert etcd is not None
        return etcd.bootstrap.secret_keys

    async def is_achieved(self) -> bool:
        return not self._used() & self.old and len({loaded_keys(node) for node in self.cluster.servers}) == 1


class NodeAgents(CrashedOperation):
    kind = operations.AGENTS
    title = "Redeployment of node agents"
    _served = "1.1.0"

    async def prepare(self) -> None:
        await super().prepare()
        await serve(self.cluster, self._served)

    async def is_achieved(self) -> bool:
        return versions(self.cluster) == {self._served}
