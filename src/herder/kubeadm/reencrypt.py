"""Encrypt all Secrets of a kubeadm cluster with the current key, and verify in etcd that none has another one.

The API server encrypts an object when it is written, also if nothing in it changes. The program runs on one server,
after all servers have loaded the key. It uses the machine's Python (3.6 or newer), kubectl and etcdctl, and holds a few
Secrets at a time in memory.
"""

import argparse
import base64
import json
import os
import re
import subprocess
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple
from urllib.parse import urlencode

PAGE = 20  # Secrets; each has up to 1 MiB
PASSES = 3
PREFIX = "/registry/secrets/"
SECRETS = "/api/v1/secrets"
PKI = "/etc/kubernetes/pki/etcd"
ANSWER = re.compile(r"^Error from server \((\w+)\)", re.MULTILINE)
HARMLESS = ("Conflict", "NotFound")  # another client has written or deleted the Secret, which needs nothing more

Object = Dict[str, Any]


class Failed(Exception):
    """The message says what to do."""


class Tools(NamedTuple):
    kubectl: Sequence[str]
    etcdctl: Sequence[str]


def run(command: Sequence[str], content: bytes = b"") -> Tuple[int, bytes, str]:
    process = subprocess.Popen(list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, problem = process.communicate(content)
    return process.returncode, out, problem.decode(errors="replace").strip()


# --- rewrite --------------------------------------------------------------------------------------------------------


def pages(tools: Tools) -> Iterator[List[Object]]:
    query = {"limit": PAGE}  # type: Dict[str, Any]
    while True:
        code, out, problem = run([*tools.kubectl, "get", "--raw", f"{SECRETS}?{urlencode(query)}"])
        if code and query.get("continue") and ANSWER.findall(problem) in (["Expired"], ["Gone"]):
            query.pop("continue")  # the list took too long; begin again
            continue
        if code:
            raise Failed(f"Secrets cannot be read: {problem[:500]}")
        page = json.loads(out.decode())
        yield page.get("items") or []
        query["continue"] = page["metadata"].get("continue")
        if not query["continue"]:
            return


def rewrite(tools: Tools) -> int:
    """Replace each Secret by itself; returns how many there are."""
    count = 0
    for items in pages(tools):
        if items:
            replace(tools, items)
        count += len(items)
    return count


def replace(tools: Tools, items: List[Object]) -> None:
    for each in items:
        each.update(apiVersion="v1", kind="Secret")  # items of a list lack them
    content = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}).encode()
    code, _, problem = run([*tools.kubectl, "replace", "--validate=false", "-f", "-"], content)
    lines = [line for line in problem.splitlines() if line.strip()]
    left = [line for line in lines if not ANSWER.match(line) or ANSWER.findall(line)[0] not in HARMLESS]
    if code and left:
        raise Failed(f"a Secret cannot be encrypted again: {left[0][:500]}")


# --- verification ---------------------------------------------------------------------------------------------------


def values(tools: Tools) -> Iterator[Tuple[str, bytes]]:
    """Keys and stored values of all Secrets."""
    start, end, last = PREFIX, PREFIX[:-1] + "0", ""
    while True:
        code, out, problem = run([*tools.etcdctl, "get", start, end, f"--limit={PAGE}", "--write-out=json"])
        if code:
            raise Failed(f"etcd cannot be read: {problem[:500]}")
        found = json.loads(out.decode())
        entries = found.get("kvs") or []
        for each in entries:
            start = base64.b64decode(each["key"]).decode()
            if start != last:  # pages overlap by one: an argument cannot contain the NUL that makes the next key
                yield start, base64.b64decode(each.get("value") or "")
        if not found.get("more"):
            return
        last = start


def unencrypted(tools: Tools, key: str) -> List[str]:
    wanted = key.encode()
    return [name[len(PREFIX) :] for name, value in values(tools) if not value.startswith(wanted)]


def reencrypt(tools: Tools, key: str) -> int:
    left = []  # type: List[str]
    for _ in range(PASSES):
        count = rewrite(tools)
        left = unencrypted(tools, key)
        if not left:
            return count
    raise Failed(f"{len(left)} Secrets are not encrypted with the new key, such as {left[0]}; repeat the rotation")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "reencrypt",
        description="Encrypt all Secrets with the current key of the API servers, and verify it in etcd.",
        epilog="example:\n  reencrypt --kubeconfig /etc/kubernetes/admin.conf --prefix k8s:enc:secretbox:v1:key2:",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kubeconfig", required=True, metavar="FILE", help="kubeconfig of an administrator")
    parser.add_argument("--server", default="https://127.0.0.1:6443", metavar="URL", help="API server (%(default)s)")
    parser.add_argument("--endpoint", default="https://127.0.0.1:2379", metavar="URL", help="etcd (%(default)s)")
    parser.add_argument("--pki", default=PKI, metavar="DIR", help="certificates of etcd (%(default)s)")
    parser.add_argument("--prefix", required=True, help="what each stored value must begin with")
    return parser


def main() -> int:
    given = _parser().parse_args()
    os.environ["LC_ALL"] = "C"  # kubectl translates some of its messages
    kubectl = ("kubectl", "--kubeconfig", given.kubeconfig, "--server", given.server, "--request-timeout=60s")
    certificate, key = f"--cert={given.pki}/healthcheck-client.crt", f"--key={given.pki}/healthcheck-client.key"
    etcdctl = ("etcdctl", f"--endpoints={given.endpoint}", f"--cacert={given.pki}/ca.crt", certificate, key)
    try:
        count = reencrypt(Tools(kubectl, etcdctl), given.prefix)
    except (Failed, OSError, ValueError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    sys.stdout.write(f"{count} Secrets are encrypted with {given.prefix}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
