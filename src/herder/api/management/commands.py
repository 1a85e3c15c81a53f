"""Commands that users run to register a cluster or node; `{token}` is the placeholder of the token."""

from __future__ import annotations

import hashlib
import re

from herder.engine.meta.kinds import Object

TOKEN_PLACEHOLDER = "{token}"


def ca_checksum(certificates: str) -> str:
    """Return the digest that agents pin: of the certificates as served, with a trailing newline. "" for none."""
    return hashlib.sha256(f"{certificates.strip()}\n".encode()).hexdigest() if certificates.strip() else ""


def manifest_url(server_url: str, cluster: str, token: str = TOKEN_PLACEHOLDER) -> str:
    return f"{server_url.rstrip('/')}/v3/import/{token}_{cluster}.yaml"


def commands(server_url: str, cluster: str, certificates: str) -> Object:
    """Return the commands; empty if server-url is unset or not https, because commands contain a token."""
    if not server_url.startswith("https://"):
        return {}
    server, manifest = server_url.rstrip("/"), manifest_url(server_url, cluster)
    return {
        "manifestUrl": manifest,
        "command": f"kubectl apply -f {manifest}",
        "insecureCommand": f"curl --insecure -sfL {manifest} | kubectl apply -f -",
        "nodeCommand": _node_command(server, certificates, "curl -fL"),
        "insecureNodeCommand": _node_command(server, certificates, "curl --insecure -fL"),
        "windowsNodeCommand": _windows_command(server, certificates, "curl.exe -fL"),
        "insecureWindowsNodeCommand": _windows_command(server, certificates, "curl.exe --insecure -fL"),
    }


def _node_command(server: str, certificates: str, fetch: str) -> str:
    pin = f" --ca-checksum {ca_checksum(certificates)}" if certificates.strip() else ""
    join = f"--server {server} --label 'cattle.io/os=linux' --token {TOKEN_PLACEHOLDER}{pin}"
    return f"{fetch} {server}/system-agent-install.sh | sudo sh -s - {join}"


def pinned_command(node_command: str) -> str:
    """Return the command for a machine that does not trust the manager's CA yet.

    It verifies the digest of the CA certificates before it runs anything the manager serves. Unchanged if there is
    nothing to pin.
    """
    fetched = re.match(r"curl -fL (?P<server>\S+)/system-agent-install\.sh", node_command)
    checksum = re.search(r" --ca-checksum (?P<digest>[0-9a-f]{64})\b", node_command)
    if fetched is None or checksum is None:
        return node_command
    script = node_command.removeprefix("curl -fL ")
    return f"{_download_authority(fetched['server'], checksum['digest'])} && {_TRUSTING_CURL} -f {script}"


def pinned_import_command(manifest: str, checksum: str) -> str:
    """Return the command that applies a manifest of the manager, also if kubectl does not trust the manager's CA."""
    if not checksum:
        return f"kubectl apply -f {manifest}"
    server = manifest.partition("/v3/import/")[0]
    return f"{_download_authority(server, checksum)} && {_TRUSTING_CURL} -fsSL {manifest} | kubectl apply -f -"


_TRUSTING_CURL = 'curl --proto =https --cacert "$ca"'


def _download_authority(server: str, checksum: str) -> str:
    download = f'ca=$(mktemp) && curl --proto =https --insecure -fsS {server}/cacerts -o "$ca"'
    return f'{download} && echo "{checksum}  $ca" | sha256sum -c --quiet -'


def _windows_command(server: str, certificates: str, fetch: str) -> str:
    pin = f" -CaChecksum {ca_checksum(certificates)}" if certificates.strip() else ""
    join = f"-Server {server} -Label 'cattle.io/os=windows' -Token {TOKEN_PLACEHOLDER} -Worker{pin}"
    allow = "Set-ExecutionPolicy Bypass -Scope Process -Force"
    return f"{fetch} {server}/wins-agent-install.ps1 -o install.ps1; {allow}; ./install.ps1 {join}"
