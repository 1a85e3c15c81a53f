"""The program that encrypts Secrets again, with stand-ins for kubectl and etcdctl that keep Secrets in files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from herder.kubeadm import reencrypt

NEW = "k8s:enc:secretbox:v1:key2:"
KUBECTL = r"""#!{python}
import json, os, sys
from urllib.parse import parse_qs, urlsplit
root, words = os.environ["ROOT"], sys.argv[1:]
names = sorted(os.listdir(root + "/secrets"))
if "get" in words:
    query = parse_qs(urlsplit(words[-1]).query)
    start, limit = int(query.get("continue", ["0"])[0]), int(query["limit"][0])
    if start and os.path.exists(root + "/expired"):
        os.unlink(root + "/expired")
        sys.exit("Error from server (Expired): The provided continue parameter is too old")
    meta = {{"continue": str(start + limit)}} if start + limit < len(names) else {{}}
    items = [{{"metadata": {{"name": n}}}} for n in names[start : start + limit]]
    print(json.dumps({{"metadata": meta, "items": items}}))
else:
    problems = json.load(open(root + "/problems"))
    failed = False
    for item in json.load(sys.stdin)["items"]:
        assert item["kind"] == "Secret"
        name = item["metadata"]["name"]
        if name in problems:
            sys.stderr.write(problems[name] + "\n")
            failed = True
        if problems.get(name, "(Conflict)").find("(Conflict)") >= 0:
            open(root + "/secrets/" + name, "w").write("{new}" + name)
    sys.exit(failed)
"""
ETCDCTL = r"""#!{python}
import base64, json, os, sys
root, words = os.environ["ROOT"], [w for w in sys.argv[1:] if not w.startswith("--")]
limit = int([w for w in sys.argv if w.startswith("--limit=")][0][8:])
code = lambda text: base64.b64encode(text.encode()).decode()
keys = sorted("/registry/secrets/" + n for n in os.listdir(root + "/secrets"))
keys = [k for k in keys if words[1] <= k < words[2]]
kvs = [{{"key": code(k), "value": code(open(root + "/secrets/" + k[18:]).read())}} for k in keys[:limit]]
print(json.dumps({{"kvs": kvs, "more": len(keys) > limit}}))
"""


class Server:
    def __init__(self, directory: Path) -> None:
        self.root = directory
        (directory / "secrets").mkdir()
        (directory / "bin").mkdir()
        for name, source in (("kubectl", KUBECTL), ("etcdctl", ETCDCTL)):
            path = directory / "bin" / name
            path.write_text(source.format(python=sys.executable, new=NEW))
            path.chmod(0o755)
        self.problems: dict[str, str] = {}
        for number in range(2 * reencrypt.PAGE + 3):
            (directory / "secrets" / f"s{number:03}").write_text("k8s:enc:secretbox:v1:key1:")

    def run(self) -> subprocess.CompletedProcess[str]:
        (self.root / "problems").write_text(json.dumps(self.problems))
        environment = {"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", "ROOT": str(self.root)}
        command = [sys.executable, reencrypt.__file__, "--kubeconfig", "admin.conf", "--prefix", NEW]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_all_secrets_are_written_again_in_pages(server: Server) -> None:
    done = server.run()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{2 * reencrypt.PAGE + 3} Secrets")
    assert all(path.read_text().startswith(NEW) for path in (server.root / "secrets").iterdir())


def test_a_list_that_has_expired_begins_again(server: Server) -> None:
    (server.root / "expired").touch()
    assert server.run().returncode == 0


def test_a_secret_that_another_client_has_written_needs_nothing_more(server: Server) -> None:
    server.problems["s001"] = "Error from server (Conflict): the object has been modified"
    assert server.run().returncode == 0


@pytest.mark.parametrize("problem", ["Error from server (Invalid): data: no", "The connection was refused"])
def test_a_secret_that_cannot_be_written_is_a_failure(server: Server, problem: str) -> None:
    server.problems["s001"] = problem
    done = server.run()
    assert (done.returncode, problem in done.stderr) == (1, True)


def test_a_secret_with_another_key_is_found_in_etcd(server: Server) -> None:
    server.problems["s042"] = "Error from server (NotFound): s042"  # and yet it exists
    done = server.run()
    assert done.returncode == 1
    assert "1 Secrets are not encrypted with the new key, such as s042" in done.stderr
