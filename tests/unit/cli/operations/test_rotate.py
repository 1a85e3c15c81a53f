"""`herder rotate`: warnings before a rotation is requested."""

from __future__ import annotations

from herder.api.rke.operations import CERTIFICATES, ENCRYPTION_KEYS
from tests.unit.cli.commands import Terminal, herder
from tests.unit.cli.operations.cluster import Cluster


def test_a_key_rotation_warns_before_its_request(cluster: Cluster) -> None:
    rotate = ("rotate", "encryption-keys", cluster.name)
    warning = "Warning: a rotation of encryption keys cannot be undone; to be able to go back, first run: "
    warning += f"herder snapshot create {cluster.name}"
    refused = Terminal(*rotate, **cluster.environment)
    refused.read_until("[y/N]")
    assert warning in " ".join(refused.output.split())
    refused.type("n\n")
    assert refused.exit_status() == 1
    assert cluster.requested(ENCRYPTION_KEYS) is None
    accepted = herder(*rotate, "--yes", "--no-wait", **cluster.environment)
    assert warning in accepted.stderr
    assert "encryption key rotation 1 is requested" in accepted.stdout


def test_a_rotation_of_authorities_warns_before_its_request(cluster: Cluster) -> None:
    rotate = ("rotate", "certificates", cluster.name, "--ca")
    refused = Terminal(*rotate, **cluster.environment)
    refused.read_until("[y/N]")
    assert "Warning: Kubernetes restarts on every machine." in " ".join(refused.output.split())
    refused.type("n\n")
    assert refused.exit_status() == 1
    assert cluster.requested(CERTIFICATES) is None
    both = herder(*rotate, "--service", "etcd", "--yes", check=False, **cluster.environment)
    assert (both.returncode, "--service cannot be used with --ca" in both.stderr) == (2, True)
    accepted = herder(*rotate, "--yes", "--no-wait", **cluster.environment)
    assert "CA rotation 1 is requested" in accepted.stdout
    assert cluster.requested(CERTIFICATES) == {"generation": 1, "caCertificates": True}
    cluster.herder("rotate", "certificates", cluster.name, "--no-wait")
    assert cluster.requested(CERTIFICATES) == {"generation": 2, "services": []}
