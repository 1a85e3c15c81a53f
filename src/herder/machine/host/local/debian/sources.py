"""apt sources and proxies of this host, reused to build the image."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from herder.machine.host.local.debian.recipe import SUITE

_SUITES = {SUITE, f"{SUITE}-updates", f"{SUITE}-security"}
_HOW_TO_FETCH = re.compile(r"Acquire::(https?|ftp|Retries|ForceIPv[46]|Check-Valid-Until|Check-Date|Max-ValidTime)\b")


def debian_sources(etc_apt: Path) -> dict[str, str]:
    """Return apt source files with this host's entries for our Debian release, by name; empty on other systems."""
    lists, stanzas = [], []
    for path in [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*.list"))]:
        lists += [line for line in _read(path).splitlines() if _is_line_of_debian(line)]
    for path in sorted((etc_apt / "sources.list.d").glob("*.sources")):
        stanzas += [stanza for stanza in re.split(r"\n\s*\n", _read(path)) if _is_stanza_of_debian(stanza)]
    found = {"debian.list": "\n".join(lists), "debian.sources": "\n\n".join(stanzas)}
    return {name: text + "\n" for name, text in found.items() if text}


def fetch_options() -> str:
    """Return the host's apt settings for proxies, certificates and the like."""
    try:
        dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return "".join(f"{line}\n" for line in dump.splitlines() if _HOW_TO_FETCH.match(line))


def _is_line_of_debian(line: str) -> bool:
    match = re.match(r"deb\s+(?:\[(?P<options>[^]]*)\]\s+)?\S+\s+(?P<suite>\S+)\s+(?P<components>.*)", line)
    if match is None:
        return False
    keyring = re.search(r"signed-by=(\S+)", match["options"] or "")
    return _is_debian({match["suite"]}, match["components"].split(), keyring[1] if keyring else "")


def _is_stanza_of_debian(stanza: str) -> bool:
    lines = [line for line in stanza.splitlines() if not line.startswith("#")]
    fields = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false"):
        return False
    return _is_debian(
        set(fields.get("suites", "").split()), fields.get("components", "").split(), fields.get("signed-by", "")
    )


def _is_debian(suites: set[str], components: list[str], keyring: str) -> bool:
    """Other projects use Debian's suite names too, but sign with other keys."""
    return bool(suites) and suites <= _SUITES and "main" in components and (not keyring or "debian-archive" in keyring)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
