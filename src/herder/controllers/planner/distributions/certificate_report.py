"""Periodic instruction that reports when the certificates on a machine expire.

It needs nothing but a POSIX shell and awk: nodes have no openssl, and commands such as `k3s certificate check` differ
between distributions and versions, or exist on servers only. It reads no private key and prints none.
"""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.rke.node.certificates import MAX_CERTIFICATES
from herder.api.rke.node.plan import CERTIFICATE_EXPIRY, PeriodicInstruction

PERIOD_SECONDS = 6 * 3600
"""Each report is a write of a plan Secret. The instruction also runs with each new plan, as after a rotation."""

_PROGRAM = r"""
function decode(text, limit,    i, n, bits, last, value) { # base64 to octets[]; returns their number
    n = bits = value = 0
    last = length(text)
    for (i = 1; i <= last && n < limit; i++) {
        if (!(digit = index(digits, substr(text, i, 1)))) continue
        value = value * 64 + digit - 1
        bits += 6
        if (bits >= 8) {
            bits -= 8
            octets[n++] = int(value / power[bits])
            value %= power[bits]
        }
    }
    return n
}
function as_text(n,    i, text) {
    for (i = 0; i < n; i++) text = text sprintf("%c", octets[i])
    return text
}
function element(    i) { # reads a DER header; the content is at `at` and has `size` octets
    tag = octets[at++] + 0
    size = octets[at++] + 0
    if (size > 132) return 0
    if (size >= 128) {
        i = size - 128
        for (size = 0; i > 0; i--) size = size * 256 + octets[at++]
    }
    return at + size <= end || tag == 48
}
function skip() {
    if (!element()) return 0
    at += size
    return 1
}
function show(body,    i, serial, time) {
    end = decode(body, 8192)
    at = 0
    if (!element() || tag != 48 || !element() || tag != 48 || !element()) return # certificate, signed part
    if (tag == 160) { # version
        at += size
        if (!element()) return
    }
    if (tag != 2 || size < 1 || size > 32) return # serial number
    for (i = 0; i < size; i++) serial = serial sprintf("%02X", octets[at++])
    if (!skip() || !skip() || !element() || tag != 48 || !skip() || !element()) return # algorithm, issuer, validity
    for (i = 0; i < size && i < 15; i++) time = time sprintf("%c", octets[at++])
    if (tag == 23) time = (substr(time, 1, 2) >= 50 ? 19 : 20) time
    else if (tag != 24) return
    if (time !~ /^[0-9]+Z$/ || length(time) != 15 || shown >= limit) return
    print "certificate", serial, time, FILENAME
    shown++
}
BEGIN {
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    power[0] = 1; power[2] = 4; power[4] = 16 # BusyBox may lack the operator
}
FNR == 1 { inside = found = 0; body = "" }
found { next } # only the first of a chain
/-----BEGIN CERTIFICATE-----/ { inside = 1; next }
inside && /-----END CERTIFICATE-----/ { found = 1; show(body) }
inside { if (length(body) < 16384) body = body $0 }
$1 == "client-certificate-data:" { # of a kubeconfig
    found = 1
    body = as_text(decode($2, 8192))
    sub(/^[^-]*-----BEGIN CERTIFICATE-----/, "", body)
    sub(/-----END CERTIFICATE-----.*/, "", body)
    show(body)
}
END { exit !shown }
"""

SCRIPT = f"""limit=$1 last=$2
shift 2
IFS=
for pattern in "$@"; do
    shift
    for file in $pattern; do
        [ ! -f "$file" ] || [ ! -r "$file" ] || set -- "$@" "$file"
    done
done
[ "$#" -gt 0 ] || exit 1
awk -v limit="$limit" '{_PROGRAM}' "$@" && [ -f "$last" ]
"""
"""Prints the first certificate of each file. It fails, so that agents run it again soon, while files are missing."""

_SERVER = ("tls/*.crt", "tls/etcd/*.crt", "tls/kube-controller-manager/*.crt", "tls/kube-scheduler/*.crt")
_KUBELET_CLIENT = "/var/lib/kubelet/pki/kubelet-client-current.pem"
_KUBEADM = (
    "/etc/kubernetes/pki/*.crt",
    "/etc/kubernetes/pki/etcd/*.crt",
    "/etc/kubernetes/admin.conf",
    "/etc/kubernetes/super-admin.conf",
    "/etc/kubernetes/controller-manager.conf",
    "/etc/kubernetes/scheduler.conf",
    _KUBELET_CLIENT,
    "/var/lib/kubelet/pki/kubelet-server-current.pem",
    "/var/lib/kubelet/pki/kubelet.crt",
)


def rancher_expiry(data: str) -> PeriodicInstruction:
    """Of K3s and RKE2. `data`: the data directory.

    Certificates that components create for themselves in other directories are left out: no rotation renews them.
    """
    return _instruction(f"{data}/agent/client-kubelet.crt", _in_data(data))


def embedded_expiry(data: str, *, is_server: bool) -> PeriodicInstruction:
    last = f"{data}/server/tls/admin.crt" if is_server else f"{data}/agent/server-ca.crt"
    return _instruction(last, _in_data(data))


def kubeadm_expiry() -> PeriodicInstruction:
    return _instruction(_KUBELET_CLIENT, _KUBEADM)


def _in_data(data: str) -> list[str]:
    return [f"{data}/agent/*.crt", *(f"{data}/server/{each}" for each in _SERVER)]


def _instruction(last: str, patterns: Iterable[str]) -> PeriodicInstruction:
    """`last`: the file that is created last, when the service starts; some installers do not wait for that."""
    return PeriodicInstruction(
        name=CERTIFICATE_EXPIRY,
        command="sh",
        args=("-c", SCRIPT, "sh", str(MAX_CERTIFICATES), last, *patterns),
        env=("LC_ALL=C",),
        period_seconds=PERIOD_SECONDS,
    )
