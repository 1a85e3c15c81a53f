"""Which certificate authorities the processes of a machine trust, and which their own certificates lead to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from herder.sim.host.certificates import AUTHORITIES, leaves
from herder.sim.host.disk import Certificate
from herder.sim.host.etcd import Bootstrap

if TYPE_CHECKING:
    from herder.sim.nodes import SimulatedNode

RUNTIMES = ("k3s", "rke2")
_ETCD = ("etcd/server-ca", "etcd/peer-ca")


@dataclass(frozen=True, slots=True)
class Trust:
    """Of one CA, as loaded when the service started."""

    bundle: frozenset[int]  # what it trusts
    presented: tuple[frozenset[int], ...]  # what each of its certificates leads to


def loaded_trust(node: SimulatedNode, bootstrap: Bootstrap) -> Mapping[str, Trust]:
    """Servers have the CAs of the datastore, and workers get them from a server when they start."""
    own: dict[str, list[frozenset[int]]] = {name: [] for name in AUTHORITIES}
    for path, (_, _, _, issuer) in leaves(node):
        certificate = node.disk.files[f"{path}.crt"]
        assert isinstance(certificate, Certificate)
        own[issuer].append(certificate.roots)
    return {name: Trust(bootstrap.bundle(name), tuple(found)) for name, found in own.items()}


def trust_problems(nodes: Iterable[SimulatedNode]) -> Iterator[str]:
    """Running machines that do not accept the certificates of another one."""
    running = [node for node in nodes if node.running and node.service.trust]
    for node in running:
        for other in running:
            if node is other or (node.is_worker and other.is_worker):
                continue
            for name, trust in node.service.trust.items():
                if name in _ETCD and not (node.has_etcd and other.has_etcd):
                    continue
                presented = other.service.trust[name].presented
                if any(not trust.bundle & each for each in presented):
                    yield f"{node.name} does not trust the {name} of {other.name}"
