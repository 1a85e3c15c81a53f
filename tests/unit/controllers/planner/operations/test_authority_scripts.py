"""Scripts that rotate certificate authorities, run by a shell with the real openssl and a stand-in for k3s.

The stand-in checks new CAs as K3s does, keeps them in a directory instead of etcd, and writes them to the disk when the
service starts.
"""

from __future__ import annotations

import ssl
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from herder.controllers.planner.distributions.rancher import authorities
from tests.unit.controllers.planner.operations.rancher_scripts.machine import Machine

NAMES = ("client-ca", "server-ca", "request-header-ca", "etcd/peer-ca", "etcd/server-ca")
RUN = "rotateCertificateAuthorities-1-1/Prepare/1"
K3S = r"""
tls="{data}/server/tls" store="{data}/store"
echo "$@" >> "$0.log"
[ "$1 $2" = "certificate rotate" ] && exit 0
case $3 in --help) exit 0 ;; --path=*) dir=${{3#--path=}} ;; *) exit 1 ;; esac
{trap}
for name in client-ca server-ca request-header-ca etcd/peer-ca etcd/server-ca; do
    if [ ! -e "$dir/tls/$name.crt" ]; then
        echo "level=warning msg=\"failed to stat: stat $dir/tls/$name.crt: no such file or directory\"" >&2
        continue
    fi
    openssl verify -CAfile "$tls/$name.crt" -untrusted "$dir/tls/$name.crt" "$dir/tls/$name.crt" > /dev/null 2>&1 || {{
        echo 'level=fatal msg="Error: see server log for details: certificate error ID 11114"' >&2
        exit 1
    }}
done
cmp -s "$dir/tls/service.key" "$tls/service.key" || exit 1
[ -n "{saves}" ] && mkdir -p "$store" && cp -r "$dir/tls/." "$store"
echo "certificates saved to datastore"
"""
SYSTEMCTL = """echo "$@" >> "$0.log"
[ "$1" = start ] && [ -d "{data}/store" ] && cp -r "{data}/store/." "{data}/server/tls"
exit 0
"""


class Server(Machine):
    """A server with the CAs that K3s creates: self-signed ones, without an authority key ID."""

    def __init__(self, directory: Path, *, days: int = 3650) -> None:
        super().__init__(directory)
        self.tls, self.new = self.data / "server" / "tls", self.data / "server" / "new-authorities"
        (self.tls / "etcd").mkdir(parents=True)
        for name in NAMES:
            write_authority(self.tls / name, f"k3s-{name}@1", days)
        (self.tls / "service.key").write_text("service key\n")
        self.k3s()
        self.program("systemctl", SYSTEMCTL.format(data=self.data))

    def k3s(self, trap: str = "", saves: str = "yes") -> None:
        self.program("k3s", K3S.format(data=self.data, trap=trap, saves=saves))

    def prepare(self, run: str = RUN) -> subprocess.CompletedProcess[str]:
        return self.run(authorities.PREPARE_SCRIPT, str(self.data), "k3s", operation=run)

    def replace(self, run: str = RUN) -> subprocess.CompletedProcess[str]:
        return self.run(authorities.REPLACE_SCRIPT, str(self.data), "k3s", "k3s", operation=run)

    def report(self) -> str:
        done = self.run(authorities.REPORT_SCRIPT, str(self.data))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.tls)): path.read_bytes() for path in self.tls.rglob("*") if path.is_file()}

    def log(self, program: str) -> list[str]:
        path = self.programs / f"{program}.log"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def write_authority(path: Path, subject: str, days: int) -> None:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=4000))
    builder = builder.not_valid_after(now + timedelta(days=days))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    Path(f"{path}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    Path(f"{path}.key").write_bytes(private)


def certificates_in(content: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(content)


def write_leaf(directory: Path, authority: bytes, key: bytes) -> Path:
    """A serving certificate with its key, followed by the file of its CA, as K3s writes and sends it."""
    issuer, signer = certificates_in(authority)[0], serialization.load_pem_private_key(key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    own, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer.subject).public_key(own.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(issuer.not_valid_before_utc)
    builder = builder.not_valid_after(now + timedelta(days=30))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("server")]), critical=False)
    path = directory / f"leaf-{len(list(directory.glob('leaf-*')))}"
    certificate = builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    private = own.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + certificate + authority)
    return path


def trusts(bundle: bytes, leaf: Path) -> bool:
    """Whether a client that trusts the bundle accepts a server with this certificate, by a TLS handshake."""
    client_context = ssl.create_default_context(cadata=bundle.decode())
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(leaf)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname="server")
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return True


def test_certificates_of_every_generation_are_trusted_by_every_generation(server: Server, tmp_path: Path) -> None:
    generations = [server.files()]
    for number in (1, 2):
        run = f"run-{number}/Prepare/1"
        prepared = server.prepare(run)
        assert prepared.returncode == 0, prepared.stderr
        replaced = server.replace(f"run-{number}/Replace/1")
        assert replaced.returncode == 0, replaced.stderr
        assert replaced.stdout.splitlines()[-1:] == prepared.stdout.splitlines()[-1:] == [server.report().strip()]
        assert not server.new.exists()
        generations.append(server.files())
    assert len({files["service.key"] for files in generations}) == 1, "tokens of service accounts stay valid"
    for name in NAMES:
        leaves = [write_leaf(tmp_path, each[f"{name}.crt"], each[f"{name}.key"]) for each in generations]
        assert len({certificates_in(each[f"{name}.crt"])[0].serial_number for each in generations}) == 3
        for trusted in generations:
            for leaf in leaves:
                assert trusts(trusted[f"{name}.crt"], leaf), (name, generations.index(trusted), leaves.index(leaf))


def test_another_cluster_is_not_trusted(server: Server, tmp_path: Path) -> None:
    other = Server(tmp_path / "other")
    assert other.prepare().returncode == 0
    name = other.new / "tls" / "server-ca"
    leaf = write_leaf(tmp_path, Path(f"{name}.crt").read_bytes(), Path(f"{name}.key").read_bytes())
    assert not trusts((server.tls / "server-ca.crt").read_bytes(), leaf)


def test_preparing_changes_nothing_that_is_in_use(server: Server) -> None:
    before = server.files()
    assert server.prepare().returncode == 0
    assert server.files() == before
    assert (server.log("systemctl"), server.log("k3s")) == ([], ["certificate rotate-ca --help"])
    for path in (server.new, *server.new.rglob("*")):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    assert not (server.new / "work").exists()


def test_another_attempt_uses_the_same_authorities_and_another_run_does_not(server: Server) -> None:
    first = server.prepare("run-1/Prepare/1").stdout
    created = (server.new / "tls" / "server-ca.crt").read_bytes()
    assert server.prepare("run-1/Prepare/2").returncode == 0
    assert (server.new / "tls" / "server-ca.crt").read_bytes() == created
    assert server.prepare("run-2/Prepare/1").stdout != first
    assert (server.new / "tls" / "server-ca.crt").read_bytes() != created


def test_a_machine_without_openssl_is_refused(server: Server, tmp_path: Path) -> None:
    before, few = server.files(), tmp_path / "few"
    few.mkdir()
    for each in ("cat", "cut", "sha256sum", "rm", "mkdir", "date", "awk", "tr"):
        (few / each).symlink_to(Path("/usr/bin") / each)
    (few / "k3s").symlink_to(server.programs / "k3s")
    command = ["/bin/sh", "-c", authorities.PREPARE_SCRIPT, "task", str(server.data), "k3s"]
    done = subprocess.run(
        command, env={"PATH": str(few), "OPERATION": RUN}, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, "install the package openssl" in done.stderr) == (1, True)
    assert (server.files(), server.new.exists()) == (before, False)


@pytest.mark.parametrize("problem", ["old k3s", "own root", "expired", "no key"])
def test_authorities_that_cannot_be_rotated_are_refused_before_anything_changes(problem: str, tmp_path: Path) -> None:
    server = Server(tmp_path, days=-1 if problem == "expired" else 3650)
    expected = "has no valid root whose key is on this server"
    if problem == "old k3s":
        server.program("k3s", "exit 1")
        expected = "has no command 'certificate rotate-ca'; upgrade the cluster first"
    elif problem == "own root":
        write_authority(tmp_path / "other", "root", 3650)
        (server.tls / "server-ca.crt").write_bytes((tmp_path / "other.crt").read_bytes())
    elif problem == "no key":
        (server.tls / "server-ca.key").write_text("")
        expected = "server-ca.key cannot be read"
    before = server.files()
    done = server.prepare()
    assert (done.returncode, expected in done.stderr) == (1, True), done.stderr
    assert (server.files(), server.new.exists()) == (before, False)


# --- replacement ------------------------------------------------------------------------------------------------------


def test_a_file_that_k3s_does_not_find_is_an_error_although_it_exits_with_0(server: Server) -> None:
    before = server.files()
    server.prepare()
    server.k3s(trap='rm "$dir/tls/etcd/peer-ca.crt"')
    done = server.replace()
    assert (done.returncode, "did not find all new CAs" in done.stderr) == (1, True), done.stderr
    assert server.files() == before
    assert server.log("systemctl") == ["start k3s"]


@pytest.mark.parametrize(
    ("trap", "error"),
    [
        ("exit 0", "does not report that it has saved the CAs"),
        ('echo "Error: certificate error ID 11114" >&2; exit 1', "certificate error ID 11114"),
    ],
)
def test_a_refused_replacement_restarts_nothing(server: Server, trap: str, error: str) -> None:
    before = server.files()
    server.prepare()
    server.k3s(trap=trap)
    done = server.replace()
    assert (done.returncode, error in done.stderr) == (1, True), done.stderr
    assert (server.files(), server.log("systemctl")) == (before, ["start k3s"])


def test_authorities_that_were_not_saved_are_noticed(server: Server) -> None:
    server.prepare()
    server.k3s(saves="")
    server.program("sleep", "exit 0")
    done = server.replace()
    assert (done.returncode, "they were not saved" in done.stderr) == (1, True), done.stderr
    assert server.new.exists(), "another attempt uses the same CAs"


@pytest.mark.parametrize("ends", ["stop k3s", "start k3s"])
def test_an_interrupted_replacement_goes_on_with_the_same_authorities(server: Server, ends: str) -> None:
    """The agent is killed after the CAs are saved; the script runs again."""
    wanted = server.prepare().stdout.splitlines()[-1]
    usual = SYSTEMCTL.format(data=server.data)
    saved = f'[ "$*" = "{ends}" ] && [ -d "{server.data}/store" ] && kill -9 $PPID && exit 1'
    server.program("systemctl", f"{usual.removesuffix('exit 0' + chr(10))}{saved}\nexit 0")
    assert server.replace().returncode != 0
    server.program("systemctl", usual)
    done = server.replace()
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, wanted), done.stderr
    assert server.report().strip() == wanted


def test_the_service_starts_again_if_certificates_cannot_be_rotated(server: Server) -> None:
    wanted = server.prepare().stdout.splitlines()[-1]
    server.k3s()
    path = server.programs / "k3s"
    path.write_text(path.read_text().replace('"certificate rotate" ] && exit 0', '"certificate rotate" ] && exit 3'))
    assert server.replace().returncode == 3
    assert server.log("systemctl")[-1] == "start k3s"
    server.k3s()
    assert server.replace().stdout.splitlines()[-1] == wanted


def test_a_finished_replacement_is_not_repeated(server: Server) -> None:
    server.prepare()
    first = server.replace().stdout
    calls = server.log("systemctl")
    again = server.replace()
    assert (again.returncode, again.stdout) == (0, first.splitlines()[-1] + "\n")
    assert server.log("systemctl") == calls


def test_new_authorities_are_not_used_on_a_server_with_other_ones_than_before(server: Server) -> None:
    server.prepare()
    write_authority(server.tls / "client-ca", "restored", 3650)
    done = server.replace()
    assert (done.returncode, "have changed since the new ones were created" in done.stderr) == (1, True)
    assert server.log("systemctl") == []


def test_unused_authorities_are_deleted(server: Server) -> None:
    server.prepare()
    for _ in range(2):
        assert server.run(authorities.DISCARD_SCRIPT, str(server.data)).returncode == 0
        assert not server.new.exists()
