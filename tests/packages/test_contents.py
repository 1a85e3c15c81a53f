"""The wheel and the sdist: the same commit gives the same bytes, and both contain all that they must."""

from __future__ import annotations

import configparser
import email
import hashlib
import os
import subprocess
import tarfile
import tomllib
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.packages.conftest import Built
from tools import packages

PACKAGE = "src/herder/"


def committed() -> dict[str, str]:
    """Paths and blob IDs of the last commit."""
    lines = subprocess.run(
        ["git", "-C", packages.ROOT, "ls-tree", "-r", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return {path: entry.split()[2] for entry, _, path in (line.partition("\t") for line in lines)}


def blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def unpacked(sdist: Path, into: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(into, filter="data")
    (root,) = into.iterdir()
    return root


def test_the_same_commit_gives_the_same_bytes(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    previous = os.umask(0o077)
    try:
        again = {package.name: package for package in packages.build(tmp_path / "again")}
    finally:
        os.umask(previous)
    for package in (built.wheel, built.sdist):
        assert again[package.name].read_bytes() == package.read_bytes()
    assert (tmp_path / "again" / packages.SUMS).read_text() == built.wheel.with_name(packages.SUMS).read_text()


def test_the_sums_are_those_of_the_packages(built: Built) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", packages.SUMS], cwd=built.wheel.parent, check=True)


def test_the_wheel_contains_every_file_of_the_package(built: Built) -> None:
    wanted = {path.removeprefix("src/"): sum for path, sum in committed().items() if path.startswith(PACKAGE)}
    with zipfile.ZipFile(built.wheel) as wheel:
        found = {name: blob(wheel.read(name)) for name in wheel.namelist() if ".dist-info/" not in name}
    assert found == wanted


def test_the_sdist_contains_the_commit_and_builds_the_same_wheel(built: Built, tmp_path: Path) -> None:
    root = unpacked(built.sdist, tmp_path / "sdist")
    found = {str(path.relative_to(root)): blob(path.read_bytes()) for path in root.rglob("*") if path.is_file()}
    assert found.pop("PKG-INFO")
    assert found == committed()
    with zipfile.ZipFile(built.wheel) as wheel:
        epoch = datetime(*wheel.infolist()[0].date_time, tzinfo=UTC).timestamp()
    packages.run_backend(root, tmp_path / "wheel", f"{epoch:.0f}", "--target", "wheel")
    assert (tmp_path / "wheel" / built.wheel.name).read_bytes() == built.wheel.read_bytes()


def test_the_metadata_names_programs_and_dependencies(built: Built) -> None:
    project = tomllib.loads((packages.ROOT / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(built.wheel) as wheel:
        (info,) = {name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
        metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
        programs = configparser.ConfigParser()
        programs.read_string(wheel.read(f"{info}/entry_points.txt").decode())
        assert f"{info}/licenses/LICENSE" in wheel.namelist()
    assert dict(programs["console_scripts"]) == project["scripts"]
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata.get_all("Provides-Extra") == ["amazonec2"]
    required = metadata.get_all("Requires-Dist") or []
    assert len(required) == len(project["dependencies"]) + 1
    assert "boto3>=1.44; extra == 'amazonec2'" in required
