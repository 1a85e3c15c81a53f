"""The agent is one file that needs only the standard library of Python 3.6 or later."""

from __future__ import annotations

import ast
import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from herder.agent.build import build
from tests.support.api import Api
from tests.support.engines import Engine
from tests.support.manager.node_agents import NodeAgent, decoded, decoded_outputs, eventually, plan_secret
from tests.support.registry.oci import image

SOURCE = Path(__file__).parents[3] / "src" / "herder" / "agent"
SHIPPED = sorted(path for path in SOURCE.rglob("*.py") if path.name != "build.py")
OLDEST = (3, 6)
STANDARD = {
    *(
        "base64",
        "binascii",
        "bz2",
        "calendar",
        "contextlib",
        "ctypes",
        "errno",
        "fcntl",
        "fnmatch",
        "functools",
        "gzip",
    ),
    *("hashlib", "http", "io", "ipaddress", "json", "os", "platform", "queue", "random", "re", "select", "shutil"),
    *("signal", "socket", "ssl", "stat", "struct", "subprocess", "sys", "tarfile", "tempfile", "threading", "time"),
    *("traceback", "typing", "urllib", "zlib"),
}
LATER_TYPING = {"Protocol", "Literal", "TypedDict", "Final", "Annotated", "ParamSpec", "TypeAlias", "Self"}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_agent_uses_only_python_3_6_and_its_standard_library(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=OLDEST)
    for node in ast.walk(tree):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
            assert not (node.module == "typing" and LATER_TYPING & {alias.name for alias in node.names})
        for module in modules:
            assert module.split(".")[0] in STANDARD or module == "herder" or module.startswith("herder.agent"), module


CORE = ("core.py", "events.py", "outputs.py", "plan.py", "probe_health.py", "protocol.py")
CLOCKS_AND_IO = {
    "contextlib",
    "fcntl",
    "http",
    "os",
    "queue",
    "random",
    "shutil",
    "signal",
    "socket",
    "ssl",
    "subprocess",
}


@pytest.mark.parametrize("name", CORE)
def test_the_core_does_no_io_and_reads_no_clock(name: str) -> None:
    source = (SOURCE / "core" / name).read_text()
    imported = {
        alias.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import) for alias in node.names
    }
    assert not imported & (CLOCKS_AND_IO | {"tempfile", "threading", "sys"})
    assert not any(call in source for call in ("time.time(", "time.monotonic(", "open("))


def test_the_build_is_reproducible(tmp_path: Path) -> None:
    build(tmp_path / "one.pyz")
    build(tmp_path / "two.pyz")
    assert (tmp_path / "one.pyz").read_bytes() == (tmp_path / "two.pyz").read_bytes()
    assert os.access(tmp_path / "one.pyz", os.X_OK)


def interpreters() -> list[str]:
    """Return the oldest, the newest and the system's Python of this host."""
    found: dict[tuple[int, int], str] = {}
    for minor in range(OLDEST[1], 30):
        if path := shutil.which(f"python3.{minor}"):
            found[3, minor] = path
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for path_ in versions.glob("3.*/bin/python3"):
        major, minor, *_ = (int(part) for part in path_.parts[-3].split(".")[:2])
        if (major, minor) >= OLDEST:
            found[major, minor] = str(path_)
    usable = {
        version: path
        for version, path in found.items()
        if subprocess.run([path, "-c", "import ssl"], capture_output=True, check=False).returncode == 0
    }
    system = [path for path in ("/usr/bin/python3",) if os.path.exists(path)]
    chosen = [usable[version] for version in sorted(usable)]
    return list(dict.fromkeys([*chosen[:1], *chosen[-1:], *system])) or [sys.executable]


@pytest.mark.parametrize("python", interpreters(), ids=lambda path: "-".join(Path(path).parts[-3:]))
async def test_the_agent_applies_a_plan_on_every_python(python: str, embedded_engine: Engine, tmp_path: Path) -> None:
    admin = Api(embedded_engine.connection)
    api = await admin.in_new_namespace()
    plan = {
        "files": [{"path": str(tmp_path / "f"), "content": "aGVsbG8="}],
        "instructions": [
            {"name": "it", "command": "sh", "args": ["-c", f"cat {tmp_path}/f"], "saveOutput": True},
            {"name": "good image", "image": "somewhere.test/good:v1", "saveOutput": True},
            {"name": "image", "image": "somewhere.test/a/b:c", "command": "true"},
        ],
        "periodicInstructions": [{"name": "p", "command": "echo", "args": ["again"]}],
        "probes": {"nobody": {"failureThreshold": 1, "httpGet": {"url": "https://127.0.0.1:1/"}}},
    }
    await api.create("secrets", plan_secret("plan", {"plan": json.dumps(plan), "plan-state": "pending"}))
    kubeconfig = embedded_engine.kubeconfig.read_text()
    (tmp_path / "agent" / "images").mkdir(parents=True)
    (tmp_path / "agent" / "images" / "broken.tar").write_bytes(b"no archive at all")
    installer = image({"run.sh": "#!/bin/sh\necho unpacked\n"}).docker_archive("somewhere.test/good:v1")
    (tmp_path / "agent" / "images" / "good.tar.gz").write_bytes(gzip.compress(installer))
    local = {"localEnabled": True, "localPlanDirectory": str(tmp_path / "plans")}
    with NodeAgent(tmp_path / "agent", kubeconfig, api.namespace, "plan", python=python, settings=local) as agent:
        secret = await api.until_object(
            api.at("secrets", "plan"), lambda found: b"failureCount" in decoded(found).get("probe-statuses", b"")
        )
        (tmp_path / "plans" / "from a file.plan").write_text("{}")
        eventually((tmp_path / "plans" / "from a file.pos").exists, "the plan from a file")
        assert agent.stop() == 0
        assert "Traceback" not in agent.log()
        assert "inotify is not available" not in agent.log()
    status = decoded(secret)
    assert decoded_outputs(status["failed-output"]) == {"it": "hello\n", "good image": "unpacked\n"}
    evidence = json.loads(status["failed-evidence"])
    assert evidence["instruction"] == "image"
    assert "broken.tar" in evidence["error"]
    await admin.close()
