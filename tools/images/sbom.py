"""The software bill of materials of the images, as SPDX 2.3 JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from herder.oci import as_json, digest_of
from tools.images.debian import Package
from tools.images.update_pins import SUITE
from tools.images.wheels import Requirement, Wheel

PLACE = "usr/share/sbom/herder.spdx.json"
_UNKNOWN = "NOASSERTION"
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9.-]")
_ROOT = "SPDXRef-Images"
_ONE_LICENSE = re.compile(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*")


@dataclass(frozen=True, slots=True)
class Release:
    """What is built: a commit of Herder."""

    version: str
    commit: str
    created: str  # time of the commit, RFC 3339


def document(
    release: Release, packages: Iterable[Package], distributions: Iterable[tuple[Requirement, Wheel]], own: Wheel
) -> bytes:
    """All three images have the same layers, and the same document."""
    listed = [
        *(_debian(package) for package in packages),
        *(_python(requirement, wheel) for requirement, wheel in distributions),
        _herder(release, own),
    ]
    identity = digest_of(as_json(listed)).removeprefix("sha256:")
    content = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"herder-images-{release.version}",
        "documentNamespace": f"https://herder.invalid/spdx/images/{release.version}/{identity}",
        "creationInfo": {"created": release.created, "creators": [f"Tool: herder-tools.images-{release.version}"]},
        "documentDescribes": [_ROOT],
        "packages": [_package(_ROOT, "herder-images", release.version, primaryPackagePurpose="CONTAINER"), *listed],
        "relationships": [
            _relationship("SPDXRef-DOCUMENT", "DESCRIBES", _ROOT),
            *(_relationship(_ROOT, "CONTAINS", each["SPDXID"]) for each in listed),
        ],
    }
    return as_json(content) + b"\n"


def _debian(package: Package) -> dict[str, Any]:
    pin, fields = package.pin, package.fields
    version, architecture = quote(pin.version, safe=""), fields["Architecture"]
    source = (fields["Source"] or pin.name).partition(" ")[0]
    return _package(
        f"SPDXRef-deb-{pin.name}",
        pin.name,
        pin.version,
        sha256=pin.sha256,
        purl=f"pkg:deb/debian/{quote(pin.name, safe='')}@{version}?arch={architecture}&distro={SUITE}",
        packageFileName=pin.file_name,
        supplier=_supplier(fields["Maintainer"]),
        sourceInfo=f"built from the source package {source}",
        comment=f"license: /usr/share/doc/{pin.name}/copyright",
    )


def _python(requirement: Requirement, wheel: Wheel) -> dict[str, Any]:
    name = re.sub(r"[-_.]+", "-", requirement.name).lower()
    return _package(
        f"SPDXRef-pypi-{name}",
        name,
        requirement.version,
        sha256=wheel.sha256,
        purl=f"pkg:pypi/{name}@{quote(requirement.version, safe='')}",
        packageFileName=wheel.file_name,
        licenseDeclared=_license(wheel),
    )


def _herder(release: Release, wheel: Wheel) -> dict[str, Any]:
    return _package(
        "SPDXRef-Herder",
        "herder",
        release.version,
        sha256=wheel.sha256,
        purl=f"pkg:generic/herder@{quote(release.version, safe='')}",
        packageFileName=wheel.file_name,
        licenseDeclared=_license(wheel),
        sourceInfo=f"commit {release.commit}",
    )


def _package(
    identifier: str, name: str, version: str, *, sha256: str = "", purl: str = "", **more: str
) -> dict[str, Any]:
    references = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}]
    return {
        "SPDXID": _NOT_IN_IDS.sub("-", identifier),
        "name": name,
        "versionInfo": version,
        "downloadLocation": _UNKNOWN,
        "filesAnalyzed": False,
        "licenseConcluded": _UNKNOWN,
        "licenseDeclared": _UNKNOWN,
        "copyrightText": _UNKNOWN,
        **({"checksums": [{"algorithm": "SHA256", "checksumValue": sha256}]} if sha256 else {}),
        **({"externalRefs": references} if purl else {}),
        **more,
    }


def _license(wheel: Wheel) -> str:
    """Only a license expression; other fields of the metadata are free text."""
    found = wheel.metadata["License-Expression"] or ""
    return found if _ONE_LICENSE.fullmatch(found) else _UNKNOWN


def _supplier(maintainer: str | None) -> str:
    name, _, address = (maintainer or "").partition("<")
    return f"Organization: {name.strip()} ({address.rstrip('>')})" if address else _UNKNOWN


def _relationship(element: str, kind: str, related: str) -> dict[str, str]:
    return {"spdxElementId": element, "relationshipType": kind, "relatedSpdxElement": related}
