"""Parts of the `local` kind that need no machine: options, seeds, addresses, package sources and images."""

from __future__ import annotations

import email
import ipaddress
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from herder.machine.driver import Machine
from herder.machine.drivers.local import Local
from herder.machine.errors import MachineError, PreCreateFailed
from herder.machine.host.kinds import Ask
from herder.machine.host.local import image, locks, seed
from herder.machine.host.local.debian import build, recipe, sources
from herder.machine.host.local.network import Addresses, forward_address, hardware_address
from herder.machine.host.local.options import Options
from herder.machine.host.local.overlay import overlay_options

DEFAULTS = {flag.name: flag.default for flag in Local.flags}


def configured(**values: object) -> dict[str, object]:
    machine = Machine("m", {}, {}, save=lambda: None, say=lambda _line: None)
    values_by_flag = {f"local-{name.replace('_', '-')}": value for name, value in values.items()}
    Local(machine).configure({**DEFAULTS, **values_by_flag})  # type: ignore[dict-item]
    return dict(machine.config["Options"])


def test_flags_become_options() -> None:
    options = configured(cpus="0.5", memory=512, zone="a", kubernetes=True)
    assert Options.parse(options) == Options(cpus=0.5, memory=512, zone="a", kubernetes=True)
    assert Options.parse(configured()) == Options()


@pytest.mark.parametrize(
    ("values_by_flag", "error"),
    [
        (
            {"cpus": "many"},
            "--local-cpus: many is not a number of CPUs; use a number from 0.01 to 1024, such as 2 or 0.5",
        ),
        ({"cpus": "-1"}, "--local-cpus: -1 is not a number of CPUs"),
        ({"cpus": "nan"}, "--local-cpus: nan is not a number of CPUs"),
        ({"memory": -1}, "--local-memory: -1 is not a number of megabytes; use a number such as 512"),
        ({"memory": 5}, "--local-memory: 5 is too small; use at least 64"),
    ],
)
def test_invalid_sizes_are_rejected(values_by_flag: dict[str, object], error: str) -> None:
    with pytest.raises(PreCreateFailed) as refused:
        configured(**values_by_flag)
    assert error in str(refused.value)


ASK = Ask("m1", "ssh-ed25519 KEY", script=b"#!/bin/sh\ninstall\n")


def seed_files(ask: Ask, *, cloud_init: bool = False) -> dict[str, seed.File]:
    return {file.path: file for file in seed.files(ask, machine_id="id", cloud_init=cloud_init)}


def test_a_script_runs_without_cloud_init() -> None:
    files = seed_files(ASK)
    assert files["root/.ssh/authorized_keys"].content == b"ssh-ed25519 KEY\n"
    assert files[seed.SCRIPT] == seed.File(seed.SCRIPT, ASK.script, 0o700)
    assert "etc/cloud/cloud-init.disabled" in files
    assert "var/lib/cloud/seed/nocloud/user-data" not in files


@pytest.mark.parametrize(
    ("user_data", "cloud_init", "kinds"),
    [
        (b"#cloud-config\n{}\n", False, ["text/cloud-config", "text/x-shellscript"]),
        (b"#!/bin/sh\ntrue\n", False, ["text/x-shellscript", "text/x-shellscript"]),
        (b"", True, ["text/x-shellscript"]),
    ],
)
def test_user_data_and_script_are_passed_to_cloud_init(user_data: bytes, cloud_init: bool, kinds: list[str]) -> None:
    files = seed_files(Ask(ASK.hostname, ASK.authorized_key, ASK.script, user_data), cloud_init=cloud_init)
    message = email.message_from_bytes(files["var/lib/cloud/seed/nocloud/user-data"].content)
    assert [part.get_content_type() for part in message.walk() if not part.is_multipart()] == kinds
    assert "etc/cloud/cloud-init.disabled" not in files


def test_other_user_data_is_rejected() -> None:
    with pytest.raises(MachineError, match="start it with #cloud-config or #!"):
        seed_files(Ask("m", "key", user_data=b"hello"))


def test_secret_files_are_readable_by_root_only(tmp_path: Path) -> None:
    key, public = seed.host_key()
    seed.write(tmp_path, [key, *seed_files(ASK).values()])
    modes = {path: (tmp_path / path).stat().st_mode & 0o777 for path in (seed.HOST_KEY, seed.SCRIPT, "root", "etc")}
    assert modes == {seed.HOST_KEY: 0o600, seed.SCRIPT: 0o700, "root": 0o700, "etc": 0o755}
    printed = subprocess.run(["ssh-keygen", "-y", "-f", tmp_path / seed.HOST_KEY], capture_output=True, check=True)
    assert printed.stdout.decode().split()[:2] == public.split()


def test_every_machine_has_its_own_stable_address(tmp_path: Path) -> None:
    network = ipaddress.IPv4Network("10.77.0.0/28")
    addresses = Addresses(tmp_path / "addresses", network, forwarded=False)
    taken = {id: addresses.take(id) for id in map(str, range(13))}
    assert len(set(taken.values())) == 13
    assert addresses.gateway not in taken.values()
    assert {id: addresses.take(id) for id in taken} == taken
    with pytest.raises(MachineError, match=r"no free address in 10\.77\.0\.0/28"):
        addresses.take("one too many")
    addresses.release("3")
    assert addresses.take("other") == taken["3"]


def test_loopback_and_hardware_addresses_derive_from_the_address() -> None:
    network = ipaddress.IPv4Network("10.77.0.0/20")
    assert forward_address("10.77.1.2", network).endswith(".1.2")
    assert ipaddress.IPv4Address(forward_address("10.77.1.2", network)) in ipaddress.IPv4Network("127.128.0.0/9")
    assert hardware_address("10.77.1.2") == "02:48:0a:4d:01:02"


DEBIAN = "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\nComponents: main\n"


def test_packages_come_from_the_hosts_debian_mirror(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "deb http://mirror.example/debian bookworm main contrib\n"
        "# deb http://mirror.example/off bookworm main\n"
        "deb [signed-by=/usr/share/keyrings/other.gpg] http://other.example/apt bookworm main\n"
        "deb http://mirror.example/debian trixie main\n"
    )
    other_sources = "Types: deb\nURIs: http://other.example\nSuites: nodistro\nComponents: main\n"
    (tmp_path / "sources.list.d/all.sources").write_text(f"{DEBIAN}\n{other_sources}\n{DEBIAN}Enabled: no\n")
    assert sources.debian_sources(tmp_path) == {
        "debian.list": "deb http://mirror.example/debian bookworm main contrib\n",
        "debian.sources": DEBIAN.strip() + "\n",
    }


def test_a_host_without_debian_sources_uses_the_builders_default(tmp_path: Path) -> None:
    assert sources.debian_sources(tmp_path) == {}


def test_the_recipe_digest_is_stable_and_its_cleanup_archive_is_valid(tmp_path: Path) -> None:
    assert recipe.digest() == recipe.digest()
    (tmp_path / "t.tar").write_bytes(recipe.cleanup_script())
    with tarfile.open(tmp_path / "t.tar") as archive:
        assert archive.getmember("./etc/systemd/system/getty@tty1.service").linkname == "/dev/null"
        assert archive.getmember("./etc/machine-id").size == 0


def test_an_image_without_init_is_rejected_and_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    with pytest.raises(MachineError, match="has no /sbin/init"):
        image.make(str(tmp_path / "empty.tar"), lambda _percent, _text: None)
    assert [path.suffix for path in (tmp_path / "cache/herder/images").iterdir()] == [".lock"]


def test_a_missing_image_is_reported_before_creation(tmp_path: Path) -> None:
    with pytest.raises(PreCreateFailed, match="is not a file; pass a tar archive"):
        image.check(str(tmp_path / "missing.tar"))


@pytest.mark.parametrize(
    ("archive", "kubernetes", "count"), [("", False, 1), ("", True, 2), ("a.tar", False, 1), ("a.tar", True, 1)]
)
def test_the_kubernetes_layer_is_added_to_our_image_only(archive: str, kubernetes: bool, count: int) -> None:
    layers = image.layers(archive, kubernetes=kubernetes)
    assert len(layers) == count
    assert layers[-1] == image.location(archive)
    assert (layers[0] == image.kubernetes_layer()) == (count == 2)


def test_overlay_options_escape_separators_in_paths() -> None:
    options = overlay_options(["/kube", "/a:b,c"], "/up", "/work", rootless=True)
    assert options == r"lowerdir=/kube:/a\:b\,c,upperdir=/up,workdir=/work,userxattr"


def test_progress_is_reported_per_package() -> None:
    progress: list[tuple[int, str]] = []
    lines = ["I: downloading packages with apt...\n", "Unpacking systemd (252) ...\n", "E: no space left\n"]
    problems = build.follow(iter(lines), lambda percent, text: progress.append((percent, text)), packages=200)
    assert progress == [(0, "fetching packages"), (0, "unpacking systemd")]
    assert problems == ["E: no space left"]


def test_a_lock_reports_its_holder(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert locks.holder_of(lock) == 0
    lock.touch()
    program = "import sys; from herder.machine.host.local import locks; locks.hold(sys.argv[1]); print(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert locks.holder_of(lock) == other.pid
    assert locks.holder_of(lock) == 0
