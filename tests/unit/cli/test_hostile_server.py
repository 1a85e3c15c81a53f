"""`herder get` against a hostile API server, such as that of an imported cluster: its answers control no terminal."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from herder.engine.client.kubeconfig import build
from tests.unit.cli.commands import herder

ESCAPE = "\x1b]0;owned\x07\x1b[2J"
META = {"name": f"a{ESCAPE}", "namespace": f"b{ESCAPE}"}
THINGS = {"name": "things", "singularName": "", "kind": "Thing", "namespaced": True, "verbs": ["list"]}
TABLE = {
    "kind": "Table",
    "columnDefinitions": [{"name": f"Name{ESCAPE}"}, {"name": "Age"}],
    "rows": [{"cells": [f"a{ESCAPE}", 1], "object": {"metadata": META}}],
}
LIST = {"kind": "ThingList", "apiVersion": "v1", "items": [{"metadata": META}]}


class Hostile(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        wants_table = "as=Table" in self.headers.get("Accept", "")
        answers: dict[str, Any] = {"/apis": {"groups": []}, "/api/v1": {"resources": [THINGS]}}
        body = json.dumps(answers.get(self.path) or (TABLE if wants_table else LIST)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None: ...


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    server = HTTPServer(("127.0.0.1", 0), Hostile)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(build(server=f"http://127.0.0.1:{server.server_port}", ca=b"", name="hostile")))
    try:
        yield file
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("output", [(), ("-o", "wide"), ("-o", "name"), ("-o", "yaml"), ("-o", "json")], ids=str)
def test_get_escapes_everything_that_the_server_chooses(kubeconfig: Path, output: tuple[str, ...]) -> None:
    shown = herder("get", "things", "-A", *output, "--kubeconfig", kubeconfig)
    assert "owned" in shown.stdout
    assert not set(shown.stdout + shown.stderr) & {"\x1b", "\x07"}
