"""Steps of scenarios on real kubeadm clusters: rotate encryption keys and certificates while a client reads Secrets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from cryptography import x509

from herder.api.rke.node.certificates import certificates_of
from herder.kubeadm.reencrypt import PREFIX
from tests.support.clusters.kubeadm_clusters import CONTROL_PLANE
from tests.support.clusters.secret_readers import reading
from tests.support.clusters.site import Cluster
from tests.support.embedded import HERDER
from tests.support.peers import peer

SECRET, VALUE = "rotated", "wool"
READ = ("get", "secret", SECRET, "-o", "go-template={{.data.value | base64decode}}")


def on_server(farm: Cluster, command: str) -> str:
    server = min(name for name, node in farm.nodes().items() if CONTROL_PLANE in node["metadata"]["labels"])
    return farm.ssh(server, command)


def create_secret(farm: Cluster) -> None:
    farm.kubectl("create", "secret", "generic", SECRET, f"--from-literal=value={VALUE}")


def read_secret(farm: Cluster) -> str:
    return farm.kubectl(*READ)


def stored_prefixes(farm: Cluster) -> set[str]:
    """How the values of all Secrets begin in etcd, up to the name of the key."""
    pki = "/etc/kubernetes/pki/etcd"
    keys = f"--cacert={pki}/ca.crt --cert={pki}/server.crt --key={pki}/server.key"
    # Values are binary, and a line of one could begin like a key; so each is read alone.
    script = (
        f"for each in $(etcdctl {keys} get {PREFIX} --prefix --keys-only); do "
        f'etcdctl {keys} get "$each" --print-value-only | head -c 64 | tr -c "[:print:]" "\\n" | head -n 1; done'
    )
    found = on_server(farm, script).splitlines()
    assert found
    return {":".join(line.split(":")[:5]) for line in found}


@contextmanager
def reading_secrets(farm: Cluster) -> Iterator[None]:
    command: list[str | Path] = [*farm.site.command_prefix, peer("kubectl"), "--kubeconfig", farm.kubeconfig, *READ]
    with reading(command, VALUE):
        yield


def await_service(farm: Cluster) -> None:
    """Wait until the agent reaches the API: an API server that has restarted adds itself to its Service afterwards."""
    farm.site.eventually(lambda: farm.kubectl("get", "--raw", "/readyz", check=False) == "ok", "the API responds")


def rotate_keys(farm: Cluster) -> None:
    """Every Secret has another key afterwards, and all are readable throughout."""
    (before,) = stored_prefixes(farm)
    with reading_secrets(farm):
        farm.site(HERDER, "rotate", "encryption-keys", farm.name, "--yes", "--timeout", str(farm.site.timeout))
    await_service(farm)
    (after,) = stored_prefixes(farm)
    provider, _, number = before.rpartition(":key")
    assert provider == "k8s:enc:secretbox:v1"
    assert after == f"{provider}:key{int(number) + 1}"
    assert read_secret(farm) == VALUE


def machine_certificates(farm: Cluster) -> dict[str, int]:
    """Serial numbers of all leaf certificates on the machines, by their files."""
    found: dict[str, int] = {}
    for directory in farm.site.machine_directories():
        for path in _certificate_files(directory):
            loaded = [*x509.load_pem_x509_certificates(path.read_bytes())]
            found[f"{directory.name}/{path.name}/{path.parent.name}"] = loaded[0].serial_number
    assert found
    return found


def _certificate_files(directory: Path) -> Iterator[Path]:
    """Of kubeadm, and the serving certificate of the kubelet; authorities are not rotated."""
    for path in sorted(directory.rglob("*.crt")):
        of_kubeadm = "etc/kubernetes/pki" in str(path) and path.name not in ("ca.crt", "front-proxy-ca.crt")
        if of_kubeadm or str(path).endswith("/pki/kubelet.crt"):
            yield path


def kubelet_serial(farm: Cluster, machine: str) -> str:
    """The serial number of the kubelet's client certificate, which it presents now."""
    command = "head -n 30 /var/lib/kubelet/pki/kubelet-client-current.pem"
    pem = farm.ssh(machine, command)
    return str(x509.load_pem_x509_certificate(pem.encode()).serial_number)


def served_serial(farm: Cluster, port: int) -> str:
    """The serial number that a component of the server presents."""
    script = (
        "import ssl,socket,hashlib\n"
        "c=ssl.create_default_context(); c.check_hostname=False; c.verify_mode=ssl.CERT_NONE\n"
        f"s=c.wrap_socket(socket.create_connection(('127.0.0.1',{port})))\n"
        "print(hashlib.sha256(s.getpeercert(True)).hexdigest())"
    )
    return on_server(farm, f'python3 -c "{script}"').strip()


def rotate_certificates(farm: Cluster) -> None:
    """All certificates are new, components present them, and Nodes stay ready."""
    before, served = machine_certificates(farm), served_serial(farm, 6443)
    kubelets = {name: kubelet_serial(farm, name) for name in farm.nodes()}
    with reading_secrets(farm):
        farm.site(HERDER, "rotate", "certificates", farm.name, "--timeout", str(farm.site.timeout))
    await_service(farm)
    after = machine_certificates(farm)
    assert after.keys() == before.keys()
    assert [name for name, serial in before.items() if after[name] == serial] == []
    assert served_serial(farm, 6443) != served
    assert not {name for name, serial in kubelets.items() if kubelet_serial(farm, name) == serial}
    nodes = farm.nodes().values()
    assert all({c["type"]: c["status"] for c in node["status"]["conditions"]}["Ready"] == "True" for node in nodes)
    await_reported_certificates(farm)


def await_reported_certificates(farm: Cluster) -> None:
    """Wait until Machines report all files with the serial numbers and dates that they have."""
    files = {
        (path.name, path.parent.name, each.serial_number, each.not_valid_after_utc)
        for directory in farm.site.machine_directories()
        for path in _certificate_files(directory)
        for each in x509.load_pem_x509_certificates(path.read_bytes())[:1]
    }
    assert files
    deadline = time.monotonic() + farm.site.timeout
    while missing := files - reported_certificates(farm):
        assert time.monotonic() < deadline, missing
        time.sleep(2)


def reported_certificates(farm: Cluster) -> set[tuple[str, str, int, datetime]]:
    """Name of the file, its directory, serial number and expiry, of all Machines."""
    return {
        (Path(each.path).name, Path(each.path).parent.name, int(each.serial, 16), each.expires)
        for machine in farm.site.listed("machines.cluster.x-k8s.io")
        for each in certificates_of(machine)
    }
