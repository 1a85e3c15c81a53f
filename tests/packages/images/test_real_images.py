"""The images with their real contents: run without rights, pushed and pulled, and imported into containerd."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from herder import __version__
from herder.clusteragent.registry import Reference, Repository
from herder.machine.host.local import image as machine_image
from tests.packages.images.conftest import Sources, Unpacked
from tests.support.registry.images import Registry, _wait_for_registry
from tools.images import bytecode, sbom
from tools.images.build import PACKAGES

pytestmark = pytest.mark.extended

NAMES = {"herder": "herder/herder", "herder-machine": "herder/machine", "herder-agent": "herder/agent"}


@pytest.fixture(scope="session")
def packages_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images") / "cache"


@pytest.fixture(scope="session")
def images(sources: Sources, packages_cache: Path) -> Path:
    """The directory of the images; building them fills the cache."""
    sources.build(packages_cache.parent / "out", packages_cache)
    return packages_cache.parent / "out"


def blobs(archive: Path, into: Path) -> dict[str, Any]:
    """Unpack an archive in OCI layout; return the manifest."""
    with tarfile.open(archive) as layout:
        layout.extractall(into, filter="data")
    (entry,) = json.loads((into / "index.json").read_text())["manifests"]
    found: dict[str, Any] = json.loads(blob(into, entry["digest"]).read_bytes())
    return found


def blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")


@pytest.fixture(scope="session")
def unpacked(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    if os.geteuid() != 0:
        pytest.skip("entering an image as another user needs root")
    layout, root = tmp_path_factory.mktemp("layout"), tmp_path_factory.mktemp("root") / "image"
    root.mkdir(mode=0o755)
    root.parent.chmod(0o755)
    for layer in blobs(images / "herder.tar", layout)["layers"]:
        with tarfile.open(blob(layout, layer["digest"])) as archive:
            archive.extractall(root, filter="fully_trusted")
    return Unpacked(root)


# --- in the image -----------------------------------------------------------------------------------------------------


def test_programs_run_as_another_user_on_a_read_only_root(unpacked: Unpacked) -> None:
    for command in ("herder", "herder-machine"):
        done = unpacked.run(f"/usr/local/bin/{command}", "--version")
        assert (done.returncode, done.stderr) == (0, "")
        assert __version__ in done.stdout
    helped = unpacked.run("/usr/local/bin/herder", "run", "--help", volumes=())
    assert (helped.returncode, helped.stderr) == (0, "")
    assert "--in-cluster" in helped.stdout


def test_a_manager_starts_serves_and_stops(unpacked: Unpacked) -> None:
    """The embedded server, because no cluster can be reached from here."""
    source = (
        "import ssl, subprocess, time, urllib.request\n"
        "server = subprocess.Popen(['/usr/local/bin/herder', 'up', '--listen', '127.0.0.1:7443'])\n"
        "unverified = ssl._create_unverified_context()\n"
        "for attempt in range(1200):\n"
        "    try: answer = urllib.request.urlopen('https://127.0.0.1:7443/healthz', context=unverified); break\n"
        "    except OSError: time.sleep(0.1)\n"
        "print('healthz:', answer.read().decode())\n"
        "server.terminate()\n"
        "print('exit status:', server.wait(60))"
    )
    done = unpacked.run("/usr/bin/python3", "-c", source, volumes=("tmp", "data"))
    assert "healthz: ok\n" in done.stdout, done.stderr
    assert "exit status: 0\n" in done.stdout, done.stderr


def test_entry_points_start(unpacked: Unpacked, images: Path, tmp_path: Path) -> None:
    """Each image with its own user. Without arguments, the agent says what it needs."""
    expected = {"herder": "Usage: herder ", "herder-machine": "Usage: herder-machine ", "herder-agent": "--server"}
    for name, text in expected.items():
        manifest = blobs(images / f"{name}.tar", tmp_path / name)
        running = json.loads(blob(tmp_path / name, manifest["config"]["digest"]).read_bytes())["config"]
        arguments = [] if name == "herder-agent" else ["--help"]
        user = int(running["User"].partition(":")[0])
        done = unpacked.run(*running["Entrypoint"], *arguments, user=user)
        assert text in done.stdout + done.stderr, name


def test_pythons_modules_find_their_libraries(unpacked: Unpacked) -> None:
    source = (
        "import importlib, os\n"
        "for name in os.listdir('/usr/lib/python3.11/lib-dynload'):\n"
        "    importlib.import_module(name.partition('.')[0])\n"
        "import getpass, socket, ssl, zoneinfo\n"
        "zoneinfo.ZoneInfo('Europe/Berlin')\n"
        "authorities = ssl.create_default_context().get_ca_certs()\n"
        "print(getpass.getuser(), socket.getservbyname('https'), len(authorities) > 100)"
    )
    done = unpacked.run("/usr/bin/python3", "-c", source)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "herder 443 True\n"


def test_all_of_herder_can_be_imported(unpacked: Unpacked) -> None:
    """No module lacks a dependency, apart from those that only other systems have."""
    source = (
        "import importlib, pkgutil, herder\n"
        "for module in pkgutil.walk_packages(herder.__path__, 'herder.'):\n"
        "    if not module.name.endswith('__main__'):\n"
        "        try: importlib.import_module(module.name)\n"
        "        except ImportError as error: print(module.name, error)\n"
    )
    done = unpacked.run("/usr/bin/python3", "-c", source)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_ec2_driver_has_its_library(unpacked: Unpacked) -> None:
    source = (
        "import boto3\n"
        "keys = dict(aws_access_key_id='x', aws_secret_access_key='x', region_name='eu-central-1')\n"
        "print([boto3.client(name, **keys).meta.service_model.service_name for name in ('ec2', 'sts')])"
    )
    done = unpacked.run("/usr/bin/python3", "-c", source)
    assert (done.returncode, done.stdout) == (0, "['ec2', 'sts']\n"), done.stderr


def test_there_is_no_shell_and_nothing_gains_rights(unpacked: Unpacked) -> None:
    programs = {path.name for path in (unpacked.root / "usr/bin").iterdir()}
    assert {"python3", "python3.11"} <= programs
    assert not programs & {"sh", "bash", "dash", "apt", "dpkg", "su", "mount"}
    assert not [path for path in unpacked.root.rglob("*") if path.is_file() and path.stat().st_mode & 0o6000]


def test_modules_are_compiled_for_their_paths_in_the_image(unpacked: Unpacked) -> None:
    source = (
        "import herder.oci, aiohttp, json\n"
        "for each in (herder.oci, aiohttp, json):\n"
        "    code = each.__loader__.get_code(each.__name__)\n"
        "    flags = int.from_bytes(open(each.__cached__, 'rb').read(8)[4:], 'little')\n"
        "    print(flags, code.co_filename == each.__file__)"
    )
    done = unpacked.run("/usr/bin/python3", "-c", source)
    assert done.stdout == "1 True\n" * 3, done.stderr  # 1: by hash, and never checked


def test_the_bill_of_materials_in_the_image_matches_its_contents(unpacked: Unpacked, images: Path) -> None:
    document = (unpacked.root / sbom.PLACE).read_bytes()
    for name in NAMES:
        assert (images / f"{name}.spdx.json").read_bytes() == document
    listed = {each["SPDXID"]: each for each in json.loads(document)["packages"]}
    described = {path.name for path in (unpacked.root / "var/lib/dpkg/status.d").iterdir() if path.suffix != ".md5sums"}
    assert {f"SPDXRef-deb-{name}" for name in described} == {name for name in listed if name.startswith("SPDXRef-deb-")}
    installed = {
        re.sub(r"[-_.]+", "-", path.name.partition("-")[0]).lower()
        for path in (unpacked.root / PACKAGES).glob("*.dist-info")
    }
    assert installed == {name.removeprefix("SPDXRef-pypi-") for name in listed if "-pypi-" in name} | {"herder"}


def test_the_python_of_the_image_runs_without_a_chroot(unpacked: Unpacked) -> None:
    """This is what compiles the modules: it must not pick up the host's Python."""
    command = [*bytecode.python(unpacked.root), "-S", "-c", "import sys; print(sys.version_info[:3], sys.prefix)"]
    done = subprocess.run(
        command, env={"PYTHONHOME": str(unpacked.root / "usr")}, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"(3, 11, 2) {unpacked.root}/usr\n"


# --- elsewhere --------------------------------------------------------------------------------------------------------


async def test_a_second_build_gives_the_same_bytes_and_a_registry_takes_them(
    sources: Sources,
    images: Path,
    packages_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The second build finds all inputs in the cache: it has neither a mirror nor an index."""
    if shutil.which("docker-registry") is None:
        pytest.skip("docker-registry is not installed")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    prefix, output = f"127.0.0.1:{port}/mirror", tmp_path / "out"
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    previous = os.umask(0o077)
    with Registry(tmp_path / "registry", port, address="127.0.0.1"):
        await _wait_for_registry("127.0.0.1", str(port))
        unreachable = Sources("http://127.0.0.1:9", sources.pins, tmp_path, sources.requirements)
        try:
            await asyncio.to_thread(unreachable.build, output, packages_cache, "--push", prefix)
        finally:
            os.umask(previous)
        assert (output / "SHA256SUMS").read_text() == (images / "SHA256SUMS").read_text()
        pushed = [line for line in capsys.readouterr().out.splitlines() if "@" in line]
        assert len(pushed) == len(NAMES)
        for line, (file_name, name) in zip(pushed, NAMES.items(), strict=True):
            reference, _, digest = line.partition("@")
            assert reference == f"{prefix}/{name}:v{__version__}"
            manifest = blobs(images / f"{file_name}.tar", tmp_path / file_name)
            await _check_pulled(f"{prefix}/{name}@{digest}", manifest, tmp_path / file_name)


async def _check_pulled(reference: str, manifest: dict[str, Any], layout: Path) -> None:
    parsed = Reference.parse(reference)
    async with Repository(parsed) as repository:
        assert await repository.manifest(parsed.version) == manifest
        for each in (manifest["config"], *manifest["layers"]):
            pulled = layout / "pulled"
            await repository.download(each["digest"], each["size"], pulled)
            assert pulled.read_bytes() == blob(layout, each["digest"]).read_bytes()


_ISOLATED = ("unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child")
_CONTAINERD = """
lower=$1 directory=$2 image=$3; shift 3
mkdir -p "$directory/upper" "$directory/work" "$directory/root" "$directory/containerd"
mount --make-rprivate /
mount -t overlay -o "lowerdir=$lower,upperdir=$directory/upper,workdir=$directory/work" overlay "$directory/root"
cd "$directory/root"
mount -t proc proc proc
mount --rbind /dev dev
mount --rbind /sys sys
mount -t tmpfs none run
mkdir -p var/lib/containerd
mount --bind "$directory/containerd" var/lib/containerd
cp "$image" run/image.tar
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin /usr/sbin/chroot . sh -euc '
containerd --log-level error >/run/containerd.log 2>&1 & daemon=$!
for attempt in $(seq 300); do ctr version >/dev/null 2>&1 && break; sleep 0.1; done
ctr -n k8s.io images import /run/image.tar >/dev/null
ctr -n k8s.io run --rm --read-only --cgroup "" "$@"
kill $daemon; wait $daemon || true
' sh "$@"
"""


@pytest.mark.parametrize(
    ("name", "user", "command"),
    [
        ("herder", "65532", ["/usr/local/bin/herder", "--version"]),
        ("herder-machine", "1000", ["/usr/local/bin/herder-machine", "--version"]),
    ],
)
def test_containerd_imports_and_runs_the_images(
    images: Path, tmp_path: Path, name: str, user: str, command: list[str]
) -> None:
    """Without a kubelet: the name is the one that kubelet would look for, and the user that of the configuration."""
    layers = machine_image.layers("", kubernetes=True)
    if os.geteuid() != 0 or not all(layer.is_dir() for layer in layers):
        pytest.skip("containerd needs root and the image of local machines with Kubernetes")
    lower = ":".join(str(layer) for layer in layers)
    reference = f"docker.io/{NAMES[name]}:v{__version__}"
    tell = ["/usr/bin/python3", "-c", "import os; print(os.getuid(), os.getgid())"]
    for number, (words, expected) in enumerate(((command, __version__), (tell, f"{user} {user}"))):
        directory = tmp_path / str(number)
        done = subprocess.run(
            [
                *_ISOLATED,
                "sh",
                "-euc",
                _CONTAINERD,
                "sh",
                lower,
                str(directory),
                str(images / f"{name}.tar"),
                reference,
                "try",
                *words,
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
