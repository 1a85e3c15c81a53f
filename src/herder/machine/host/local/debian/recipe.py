"""Contents of the image of `local` machines: Debian packages, files and masked units."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping

SUITE = "bookworm"
_INCLUDED = """
    systemd systemd-sysv dbus libpam-systemd udev openssh-server cloud-init iproute2 iputils-ping ca-certificates curl
    python3-minimal iptables nftables conntrack socat ethtool kmod procps sudo less
"""
PACKAGES = _INCLUDED.split()
PACKAGE_COUNT = 222  # including dependencies, approximately; for progress
_ADDED_FOR_KUBERNETES = "containerd runc containernetworking-plugins ebtables busybox-static"
KUBERNETES_PACKAGES = _ADDED_FOR_KUBERNETES.split()
KUBERNETES_PACKAGE_COUNT = 5
EPOCH = "1700000000"  # timestamps are clamped to it, for reproducible images

# Excluded from the archive: files that machines must not share, or do not need.
LEFT_OUT = (
    "./dev/*",
    "./etc/ssh/ssh_host_*",
    "./etc/apt/apt.conf.d/99mmdebstrap",  # download settings, perhaps with a proxy password
    "./var/cache/apt/archives/*.deb",
    "./var/lib/apt/lists/*_*",
)

# These units wait for devices, consoles and timers that machines do not have, or wake up needlessly.
_MASKED = """
    apt-daily.service apt-daily.timer apt-daily-upgrade.service apt-daily-upgrade.timer dpkg-db-backup.timer
    e2scrub_all.timer e2scrub_reap.service fstrim.timer getty@tty1.service console-getty.service getty-static.service
    systemd-resolved.service systemd-pstore.service systemd-hwdb-update.service systemd-udevd.service
    systemd-udev-trigger.service systemd-udev-settle.service systemd-udevd-control.socket systemd-udevd-kernel.socket
    systemd-remount-fs.service systemd-timesyncd.service systemd-firstboot.service systemd-binfmt.service
    cloud-init-hotplugd.socket sys-kernel-debug.mount sys-kernel-tracing.mount sys-fs-fuse-connections.mount
    dev-hugepages.mount dev-mqueue.mount proc-sys-fs-binfmt_misc.automount modprobe@.service kmod-static-nodes.service
    systemd-modules-load.service
"""
_MASKED_UNITS = _MASKED.split()

_CLOUD_CONFIG = {
    "datasource_list": ["NoCloud", "None"],
    "network": {"config": "disabled"},
    "users": [],
    "disable_root": False,
    "ssh_deletekeys": False,
    "ssh_genkeytypes": [],
    "locale": False,
    "apt_preserve_sources_list": True,
    "cloud_init_modules": [
        "bootcmd",
        "write-files",
        "set_hostname",
        "update_hostname",
        "update_etc_hosts",
        "ca-certs",
        "users-groups",
        "ssh",
    ],
    "cloud_config_modules": ["set-passwords", "ntp", "timezone", "runcmd"],
    "cloud_final_modules": ["package-update-upgrade-install", "write-files-deferred", "scripts-user", "final-message"],
}

_FILES = {
    "etc/machine-id": "",
    "etc/fstab": "",
    "etc/resolv.conf": "",
    "etc/cloud/cloud.cfg.d/90-local.cfg": json.dumps(_CLOUD_CONFIG, indent=1) + "\n",
    "etc/systemd/journald.conf.d/local.conf": "[Journal]\nRuntimeMaxUse=8M\nSystemMaxUse=32M\nReadKMsg=no\nAudit=no\n",
    "etc/systemd/system.conf.d/local.conf": "[Manager]\nDefaultTimeoutStopSec=15s\nDefaultTimeoutStartSec=60s\n",
    "etc/ssh/sshd_config.d/local.conf": "PermitRootLogin prohibit-password\nUseDNS no\nMaxStartups 100\n",
}

# The Kubernetes installer may replace it.
_CONTAINERD = """\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  # The host may not let anybody protect processes from running out of memory, and then no container would start.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"
"""
_KUBERNETES_FILES = {"etc/containerd/config.toml": _CONTAINERD}


def digest() -> str:
    """Digest of the recipe; identifies the image."""
    return _digest_of([SUITE, PACKAGES, EPOCH, LEFT_OUT, _MASKED_UNITS, _FILES])


def kubernetes_digest() -> str:
    """Digest of the layer, including the image it is built on."""
    return _digest_of([digest(), KUBERNETES_PACKAGES, _KUBERNETES_FILES])


def _digest_of(parts: list[object]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def cleanup_script() -> bytes:
    """Return an archive of files to add to the image."""
    return _archive_of(_FILES, _MASKED_UNITS)


def kubernetes_settings() -> bytes:
    """Return the same for the Kubernetes layer."""
    return _archive_of(_KUBERNETES_FILES, ())


def _archive_of(files: Mapping[str, str], masked_units: Iterable[str]) -> bytes:
    stored = io.BytesIO()
    with tarfile.open(fileobj=stored, mode="w") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"./{path}")
            entry.mode, entry.mtime, entry.size = 0o644, int(EPOCH), len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
        for unit in masked_units:
            entry = tarfile.TarInfo(f"./etc/systemd/system/{unit}")
            entry.type, entry.linkname, entry.mtime = tarfile.SYMTYPE, "/dev/null", int(EPOCH)
            archive.addfile(entry)
    return stored.getvalue()
