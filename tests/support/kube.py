"""A real kube-apiserver with etcd on loopback: the reference for the embedded server.

python -m tests.support.kube [--controllers=*] [DIR]     start one, print its kubeconfig, wait for Ctrl-C
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import secrets
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from tests.support.canaries import assert_no_secrets, in_etcd, in_logs
from tests.support.manager import account as manager_account
from tests.support.peers import peer

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


LISTENED_PORTS = range(10_000, 30_000)
"""Below the ports of outgoing connections, one of which could take the port of a server that is down for a moment."""


def free_port() -> int:
    while True:
        port = secrets.choice(LISTENED_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


class Authority:
    """A temporary certificate authority."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test-ca")])
        self.certificate = self._sign(self.name, self.key, is_ca=True)
        self.path = self._write("ca.crt", self.certificate.public_bytes(serialization.Encoding.PEM))
        self._write_key("ca.key", self.key)

    def issue(
        self, name: str, *, groups: tuple[str, ...] = (), server: bool = False, addresses: tuple[str, ...] = ()
    ) -> tuple[Path, Path]:
        """Issue a certificate. `addresses` are those of a server besides loopback."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key, server=server, addresses=("127.0.0.1", *addresses))
        stem = name.replace(":", "-").replace("/", "-")
        path = self._write(f"{stem}.crt", certificate.public_bytes(serialization.Encoding.PEM))
        return path, self._write_key(f"{stem}.key", key)

    def service_account_key(self) -> Path:
        return self._write_key("sa.key", rsa.generate_private_key(65537, 2048))

    def _sign(
        self,
        subject: x509.Name,
        key: PrivateKey,
        *,
        is_ca: bool = False,
        server: bool = False,
        addresses: tuple[str, ...] = (),
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=7))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        if server:
            names = [x509.DNSName("localhost"), x509.DNSName("kubernetes.default.svc")]
            ip_addresses = [x509.IPAddress(ipaddress.ip_address(each)) for each in addresses]
            builder = builder.add_extension(x509.SubjectAlternativeName([*names, *ip_addresses]), critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def _write(self, name: str, content: bytes) -> Path:
        path = self.directory / name
        path.write_bytes(content)
        path.chmod(0o600)
        return path

    def _write_key(self, name: str, key: PrivateKey) -> Path:
        encoded = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return self._write(name, encoded)


class RealKube:
    """etcd and kube-apiserver, with the controller-manager if garbage collection or tokens are needed."""

    def __init__(
        self,
        directory: Path,
        *,
        controller_manager: bool = False,
        controllers: tuple[str, ...] = ("*",),
        fsync: bool = False,
        flags: tuple[str, ...] = (),
        controller_manager_flags: tuple[str, ...] = (),
        audited: bool = False,
    ) -> None:
        """`flags` are those of kube-apiserver. `audited`: with a log of the requests of the manager's account."""
        self.directory = directory
        self.controllers = controllers
        self.wants_controller_manager = controller_manager
        self.fsync = fsync
        self.flags = flags
        self.controller_manager_flags = controller_manager_flags
        self.audited = audited
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.kubeconfig = directory / "kubeconfig"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> RealKube:
        self.authority = Authority(self.directory / "pki")
        self.admin = self.authority.issue("admin", groups=("system:masters",))
        self._write_kubeconfig(self.kubeconfig, *self.admin)
        if self.audited:
            account = self.authority.issue(manager_account.USER, groups=manager_account.GROUPS)
            self._write_kubeconfig(self.directory / manager_account.KUBECONFIG, *account)
        self._start_etcd()
        self._start_apiserver()
        self._wait_ready()
        if self.wants_controller_manager:
            self._start_controller_manager()
        return self

    def stop(self) -> None:
        """Stop all processes. What was stored and logged must not contain a secret."""
        # In this order: an API server without its etcd takes minutes to exit.
        self._end("kube-controller-manager")
        self._end("kube-apiserver")
        try:
            if "etcd" in self.processes and self.processes["etcd"].poll() is None:
                assert_no_secrets(in_etcd(self.etcd), in_logs(self.directory))
        finally:
            self._end("etcd")

    def _end(self, name: str) -> None:
        process = self.processes.pop(name, None)
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> RealKube:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def user_kubeconfig(self, name: str, groups: tuple[str, ...] = ()) -> Path:
        path = self.directory / f"kubeconfig-{name.replace(':', '-')}"
        self._write_kubeconfig(path, *self.authority.issue(name, groups=groups))
        return path

    def _start_etcd(self) -> None:
        client, peering = free_port(), free_port()
        self.etcd = f"http://127.0.0.1:{client}"
        arguments = [
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={self.etcd}",
            f"--advertise-client-urls={self.etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peering}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peering}",
            f"--initial-cluster=default=http://127.0.0.1:{peering}",
        ]
        if not self.fsync:
            arguments.append("--unsafe-no-fsync")
        self._spawn("etcd", arguments)

    def _start_apiserver(self) -> None:
        pki = self.authority
        certificate, key = pki.issue("kube-apiserver", server=True)
        account_key = pki.service_account_key()
        node_certificate, node_key = pki.issue("kube-apiserver-kubelet-client", groups=("system:masters",))
        self.service_account_key = account_key
        arguments = [
            f"--etcd-servers={self.etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={pki.path}",
            f"--service-account-key-file={account_key}",
            f"--service-account-signing-key-file={account_key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--kubelet-client-certificate={node_certificate}",
            f"--kubelet-client-key={node_key}",
            "--endpoint-reconciler-type=none",
            "--authorization-mode=RBAC",
            f"--cert-dir={self.directory / 'certs'}",
            *(manager_account.audit_flags(self.directory) if self.audited else ()),
            *self.flags,
        ]
        self._spawn("kube-apiserver", arguments)

    def _start_controller_manager(self) -> None:
        pki = self.authority
        path = self.directory / "kubeconfig-controller-manager"
        self._write_kubeconfig(path, *pki.issue("system:kube-controller-manager", groups=("system:masters",)))
        arguments = [
            f"--kubeconfig={path}",
            f"--root-ca-file={pki.path}",
            f"--service-account-private-key-file={self.service_account_key}",
            f"--controllers={','.join(self.controllers)}",
            "--use-service-account-credentials=false",
            "--leader-elect=false",
            # With the default of 20 requests per second, the deletion of a namespace takes minutes.
            "--kube-api-qps=1000",
            "--kube-api-burst=1000",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            f"--cert-dir={self.directory / 'certs-cm'}",
            f"--cluster-signing-cert-file={pki.path}",
            f"--cluster-signing-key-file={pki.directory / 'ca.key'}",
            *self.controller_manager_flags,
        ]
        self._spawn("kube-controller-manager", arguments)

    def _spawn(self, name: str, arguments: list[str]) -> None:
        with (self.directory / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [peer(name), *arguments], stdout=log, stderr=log, cwd=self.directory, start_new_session=True
            )

    def _write_kubeconfig(self, path: Path, certificate: Path, key: Path) -> None:
        cluster = {"server": self.url, "certificate-authority": str(self.authority.path)}
        user = {"client-certificate": str(certificate), "client-key": str(key)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "real", "cluster": cluster}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": "user"}}],
            "current-context": "real",
        }
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)

    def _wait_ready(self) -> None:
        context = ssl.create_default_context(cafile=str(self.authority.path))
        context.load_cert_chain(*map(str, self.admin))
        deadline = time.monotonic() + 90
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", context=context, timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError as error:
                ended = [name for name, process in self.processes.items() if process.poll() is not None]
                if ended or time.monotonic() > deadline:
                    tail = self.log(ended[0] if ended else "kube-apiserver")[-3000:]
                    self.stop()
                    raise RuntimeError(f"kube-apiserver did not become ready: {error}\n{tail}") from error
            time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path)
    parser.add_argument(
        "--controllers", default="", help="controllers of the controller-manager, separated by commas; empty: none"
    )
    options = parser.parse_args()
    directory = options.directory or Path(tempfile.mkdtemp(prefix="real-kube-"))
    directory.mkdir(parents=True, exist_ok=True)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    wanted = tuple(options.controllers.split(",")) if options.controllers else ()
    api_server_flags = ("--advertise-address=127.0.0.1",)  # without a default route it cannot determine one
    with RealKube(directory, controller_manager=bool(wanted), controllers=wanted, flags=api_server_flags) as kube:
        print(f"export KUBECONFIG={kube.kubeconfig}", flush=True)
        stopped.wait()


if __name__ == "__main__":
    main()
