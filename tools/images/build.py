"""Build the images from verified inputs: three layers that all images share, and a configuration for each image."""

from __future__ import annotations

import gzip
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from herder.api.machines.jobs import USER as MACHINE_USER
from herder.api.settings import AGENT_IMAGE, DEFINITIONS, MACHINE_IMAGE
from herder.oci import PACKED_LAYER, Image, Layer, digest_of, image
from tools.deploy_manifests import USER_ID
from tools.images import base, bytecode, sbom
from tools.images.debian import Package
from tools.images.sbom import Release
from tools.images.tree import File, Tree
from tools.images.wheels import Requirement, Wheel

ARCHITECTURE = "amd64"  # that of the pinned packages
PACKAGES = "usr/local/lib/python3.11/dist-packages"  # where Debian's Python looks for what is not from Debian
PROGRAMS = {"herder": "herder.cli.main", "herder-machine": "herder.machine.cli.main"}
COMPRESSION = 6  # a higher level takes several times as long and saves little
# boto3 describes all services of AWS. Machines need one of them, and those that credentials are from.
_UNUSED = re.compile(r"botocore/data/(?!(ec2|sso|sso-oidc|sts)/)[^/]+/")

_PROGRAM = "#!/usr/bin/python3.11 -sP\nimport sys\n\nfrom {module} import main\n\nsys.exit(main())\n"
_MODULE = ("/usr/bin/python3.11", "-sP", "-m")
_ENVIRONMENT = ("PATH=/usr/local/bin:/usr/bin", "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1")

Compile = Callable[[Path, Sequence[str]], Tree]


@dataclass(frozen=True, slots=True)
class Inputs:
    release: Release
    packages: Sequence[Package]
    distributions: Sequence[tuple[Requirement, Wheel]]
    wheel: Wheel  # Herder itself


@dataclass(frozen=True, slots=True)
class Built:
    image: Image
    name: str  # as the settings name it, such as herder/machine:v1
    file_name: str  # without an extension


ROOT = 0
"""User of the cluster agent: its credentials are mounted with mode 0500, as in Rancher's manifest. A group for its pod
would change the manifest, and with it the plans of all machines."""


@dataclass(frozen=True, slots=True)
class Kind:
    file_name: str
    name: Callable[[str], str]  # by version
    user: int
    entrypoint: tuple[str, ...]
    title: str


def _setting(name: str) -> Callable[[str], str]:
    """Settings name the image of the version that runs; a build may be of another one."""
    repository = DEFINITIONS[name].default.partition(":")[0]
    return lambda version: f"{repository}:v{version}"


KINDS = (
    Kind("herder", lambda version: f"herder/herder:v{version}", USER_ID, ("/usr/local/bin/herder",), "Herder"),
    Kind(
        "herder-machine",
        _setting(MACHINE_IMAGE),
        MACHINE_USER,
        (*_MODULE, "herder.machine.entrypoint"),
        "Herder: Jobs that create and delete machines",
    ),
    Kind("herder-agent", _setting(AGENT_IMAGE), ROOT, (*_MODULE, "herder.clusteragent"), "Herder: cluster agent"),
)


def build(inputs: Inputs, *, compiler: Compile = bytecode.compile_below) -> tuple[list[Built], bytes]:
    """Return the images and their bill of materials."""
    document = sbom.document(inputs.release, inputs.packages, inputs.distributions, inputs.wheel)
    layers = [_layer(tree) for tree in _trees(inputs, document, compiler)]
    built = [
        Built(
            image(layers, _running(kind, inputs.release), created=inputs.release.created, architecture=ARCHITECTURE),
            kind.name(inputs.release.version),
            kind.file_name,
        )
        for kind in KINDS
    ]
    return built, document


def _trees(inputs: Inputs, document: bytes, compiler: Compile) -> list[Tree]:
    system, dependencies, own = base.tree(inputs.packages), Tree(), Tree()
    for _, wheel in inputs.distributions:
        _unpack(wheel, dependencies)
    _unpack(inputs.wheel, own)
    for name, module in PROGRAMS.items():
        own.add(f"usr/local/bin/{name}", File(_PROGRAM.format(module=module).encode(), 0o755))
    own.add(sbom.PLACE, File(document))
    with tempfile.TemporaryDirectory(prefix="herder-images-") as scratch:
        root = Path(scratch)
        for tree, place in ((system, base.LIBRARY), (dependencies, PACKAGES), (own, f"{PACKAGES}/herder")):
            tree.write_to(root)
            # Each layer adds its own bytecode only; what is compiled must not depend on the layers above.
            tree.update(compiler(root, [place]))
    return [system, dependencies, own]


def _unpack(wheel: Wheel, tree: Tree) -> None:
    for path, node in wheel.nodes():
        if not _UNUSED.match(path):
            tree.add(f"{PACKAGES}/{path}", node)


def _layer(tree: Tree) -> Layer:
    content = tree.tar()
    return Layer(gzip.compress(content, COMPRESSION, mtime=0), digest_of(content), PACKED_LAYER)


def _running(kind: Kind, release: Release) -> dict[str, object]:
    """Users are numbers, because Kubernetes cannot tell whether a name is root's."""
    return {
        "User": f"{kind.user}:{kind.user}",
        "Env": list(_ENVIRONMENT),
        "Entrypoint": list(kind.entrypoint),
        "WorkingDir": "/",
        "Labels": {
            "org.opencontainers.image.title": kind.title,
            "org.opencontainers.image.version": release.version,
            "org.opencontainers.image.revision": release.commit,
            "org.opencontainers.image.created": release.created,
            "org.opencontainers.image.licenses": "Apache-2.0",
        },
    }
