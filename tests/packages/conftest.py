"""The packages of the last commit, and an installation of the wheel outside of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools import packages


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path


@dataclass(frozen=True)
class Installation:
    directory: Path
    site_packages: Path

    def run(self, program: str, *arguments: str | Path, seconds: int = 120) -> subprocess.CompletedProcess[str]:
        """Run a program of the installation, far away from the checkout."""
        return subprocess.run(
            [self.directory / "bin" / program, *arguments],
            cwd="/",
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )


def environment() -> dict[str, str]:
    """Without what could lead to the checkout or to another manager."""
    others = ("PYTHONPATH", "VIRTUAL_ENV", "KUBECONFIG", "HERDER_DATA_DIR")
    return {name: value for name, value in os.environ.items() if name not in others}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    sdist, wheel = sorted(packages.build(tmp_path_factory.mktemp("dist")), key=lambda package: package.suffix)
    return Built(wheel, sdist)


@pytest.fixture(scope="session")
def installation(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Dependencies come from the environment of the tests, because nothing can be downloaded."""
    directory = tmp_path_factory.mktemp("installation") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    install = ["install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", built.wheel]
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", directory / "bin" / "python", *install], env=environment(), check=True
    )
    variables = {"base": str(directory), "platbase": str(directory)}
    site_packages = Path(sysconfig.get_path("purelib", "venv", variables))
    (site_packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return Installation(directory, site_packages)
