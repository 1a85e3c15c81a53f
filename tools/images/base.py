"""The layer that all images share: Debian's Python and what it needs, prepared without maintainer scripts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from herder.api.machines.jobs import HOME as MACHINE_HOME
from herder.api.machines.jobs import USER as MACHINE_USER
from tools.deploy_manifests import USER_ID
from tools.images.debian import Package
from tools.images.tree import Directory, File, Link, Tree, normalized

PYTHON = "python3.11"
LIBRARY = f"usr/lib/{PYTHON}"
CA_BUNDLE = "etc/ssl/certs/ca-certificates.crt"
_AUTHORITY = re.compile(r"usr/share/ca-certificates/.*\.crt")

# Documentation (not licenses), message catalogs, variants of time zones, and character sets that Python brings itself.
_UNUSED = re.compile(
    r"usr/share/(doc-base|man|info|locale|lintian|bug|applications|pixmaps|binfmts|apps)(/|$)"
    r"|usr/share/doc/[^/]+/(?!copyright$)"
    r"|usr/share/zoneinfo/(posix|right)(/|$)|usr/lib/x86_64-linux-gnu/(gconv|audit)(/|$)|etc/(update-motd\.d|default|dpkg|ld\.so\.conf\.d)(/|$)"
)
# Modules whose libraries would bring six more packages: databases, terminals, NIS and password hashes.
_UNUSED_MODULES = re.compile(rf"{LIBRARY}/lib-dynload/(_dbm|_curses|_curses_panel|_crypt|nis|readline)\.")

_ACCOUNTS = (
    ("root", 0, "/root"),
    ("machine", MACHINE_USER, MACHINE_HOME),
    ("nobody", 65534, "/nonexistent"),
    ("herder", USER_ID, "/data"),
)
MOUNT_POINTS = ("data", MACHINE_HOME.lstrip("/"), "proc", "sys", "dev", "run", "root", "var/tmp")
_SWITCH = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"


def tree(packages: Iterable[Package]) -> Tree:
    built = Tree()
    built.add_merged_directories()
    authorities: dict[str, bytes] = {}
    for package in packages:
        for name, node in package.nodes():
            path = normalized(name)
            if _AUTHORITY.fullmatch(path) and isinstance(node, File):
                authorities[path] = node.content
            elif not _UNUSED.match(path) and not _UNUSED_MODULES.match(path):
                built.add(path, node)
        _describe(built, package)
    _set_up(built, authorities)
    return built


def _describe(built: Tree, package: Package) -> None:
    """As in other images without dpkg: vulnerability scanners read packages and versions from this directory."""
    status = f"var/lib/dpkg/status.d/{package.pin.name}"
    built.add(status, File(package.control.encode()))
    built.add(f"{status}.md5sums", File(package.md5sums.encode()))


def _set_up(built: Tree, authorities: Mapping[str, bytes]) -> None:
    """What maintainer scripts do on a Debian system."""
    built.add(CA_BUNDLE, File(b"".join(authorities[path] for path in sorted(authorities))))
    built.add("usr/lib/ssl/cert.pem", Link(f"/{CA_BUNDLE}"))
    built.add("usr/lib/ssl/certs", Link("/etc/ssl/certs"))
    built.add("usr/bin/python3", Link(PYTHON))
    users = (f"{name}:x:{number}:{number}::{home}:/usr/sbin/nologin\n" for name, number, home in _ACCOUNTS)
    groups = (f"{name}:x:{number}:\n" for name, number, _ in _ACCOUNTS)
    built.add("etc/passwd", File("".join(users).encode()))
    built.add("etc/group", File("".join(groups).encode()))
    built.add("etc/nsswitch.conf", File(_SWITCH.encode()))
    built.add("tmp", Directory(0o1777))
    for path in MOUNT_POINTS:
        if path not in built:
            built.add(path, Directory())
