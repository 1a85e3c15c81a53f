"""The table of plans that both node agents run: what each does, and its expected result."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.manager.node_agents import new_plan, sh

SUCCEEDED, FAILED = "succeeded", "failed"


@dataclass(frozen=True)
class Case:
    """`{dir}`, `{web}`, `{registry}` and others are placeholders for paths and addresses, per agent or shared."""

    name: str
    plan: Mapping[str, Any]
    outcome: str = SUCCEEDED
    outputs: Mapping[str, str] = field(default_factory=dict)  # saved outputs, by instruction
    files: Mapping[str, str] = field(default_factory=dict)  # afterwards: path to "mode uid:gid content"; "" if absent
    before: Mapping[str, str] = field(default_factory=dict)  # files that exist already
    probes: Mapping[str, Any] = field(default_factory=dict)  # final statuses
    periodic: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # fields of their outputs
    data: Mapping[str, str] = field(default_factory=dict)  # additional data of the Secret
    deviation: str = ""  # why the Go agent deviates; then only Herder's agent must match the table
    runs_on_both: bool = True  # whether the Go agent runs the case, too


def written(path: str, content: str = "hello", **more: Any) -> dict[str, Any]:
    return {"path": path, "content": base64.b64encode(content.encode()).decode(), **more}


def probe(url: str, **more: Any) -> dict[str, Any]:
    http = {key: more.pop(key) for key in ("insecure", "caCert", "clientCert", "clientKey") if key in more}
    return {"timeoutSeconds": 5, "failureThreshold": 2, **more, "httpGet": {"url": url, **http}}


_OK = {"healthy": True, "successCount": 1}
_BAD = {"failureCount": 2}

INSTRUCTIONS = (
    Case("its output is kept", new_plan(sh("echo hi")), outputs={"it": "hi\n"}),
    Case(
        "instructions run in their order",
        new_plan(sh("echo 1 >> {dir}/order"), sh("echo 2 >> {dir}/order", "b"), sh("cat {dir}/order", "c")),
        outputs={"it": "", "b": "", "c": "1\n2\n"},
    ),
    Case("output that is not to be saved is not", new_plan(sh("echo hi", saveOutput=False)), outputs={}),
    Case("output without a name is not saved", new_plan(sh("echo hi", "")), outputs={}),
    Case("errors are not in the output", new_plan(sh("echo out; echo err >&2")), outputs={"it": "out\n"}),
    Case("a last line without its end gets one", new_plan(sh("printf 'a\\nb'")), outputs={"it": "a\nb\n"}),
    Case("carriage returns at the ends of lines go", new_plan(sh("printf 'a\\r\\nb\\r'")), outputs={"it": "a\nb\n"}),
    Case("empty lines stay", new_plan(sh("printf '\\n\\na\\n\\n'")), outputs={"it": "\n\na\n\n"}),
    Case("silence is kept too", new_plan(sh("true")), outputs={"it": ""}),
    Case(
        "the instruction's environment",
        new_plan(sh("echo $A-$B", env=["A=1", "B=x y=z"])),
        outputs={"it": "1-x y=z\n"},
    ),
    Case(
        "it runs in a directory of its own, which is last on its path",
        new_plan(
            sh(
                'test "$PWD" = "$CATTLE_AGENT_EXECUTION_PWD" && test "${PATH##*:}" = "$PWD" '
                '&& ls | wc -l && basename "$PWD" | cut -d_ -f2'
            ),
            sh('basename "$PWD" | cut -d_ -f2', "second"),
        ),
        outputs={"it": "0\n0\n", "second": "1\n"},
    ),
    Case("the first attempt is number one", new_plan(sh("echo $CATTLE_AGENT_ATTEMPT_NUMBER")), outputs={"it": "1\n"}),
    Case(
        "arguments reach it as they are",
        new_plan({"name": "it", "command": "printf", "args": ["%s|", "a b", "$HOME", "'", ""], "saveOutput": True}),
        outputs={"it": "a b|$HOME|'||\n"},
    ),
    Case("nothing is read from a terminal", new_plan(sh("cat; echo end")), outputs={"it": "end\n"}),
    Case("a plan of nothing succeeds", {}),
    Case("unknown fields are ignored", new_plan(sh("echo hi", script="x"), unknown={"a": 1}), outputs={"it": "hi\n"}),
    Case(
        "a failure ends the plan",
        new_plan(sh("echo a"), sh("echo b; exit 3", "bad"), sh("touch {dir}/never", "never")),
        outcome=FAILED,
        outputs={"it": "a\n", "bad": "b\n"},
        files={"{dir}/never": ""},
    ),
    Case("a program that is not there", new_plan({"name": "it", "command": "no-such-program"}), outcome=FAILED),
    Case("a program that a signal ends", new_plan(sh("kill -9 $$")), outcome=FAILED, outputs={"it": ""}),
    Case("without a command and an image there is no run.sh", new_plan({"name": "it"}), outcome=FAILED),
    Case(
        "a line longer than any buffer",
        new_plan(sh("head -c 200000 /dev/zero | tr '\\0' x | wc -c; head -c 70000 /dev/zero | tr '\\0' x")),
        outputs={"it": "200000\n" + "x" * 70000 + "\n"},
        deviation="lines beyond 64 KiB end its capture",
    ),
    Case(
        "a child that stays behind does not hold the plan up",
        new_plan(sh("sleep 300 & echo $! > {dir}/child; echo hi"), sh("kill $(cat {dir}/child)", "end")),
        outputs={"it": "hi\n", "end": ""},
        deviation="it waits until every process has closed the output",
        runs_on_both=False,
    ),
)

FILES = (
    Case(
        "a file, by default for its owner alone",
        {"files": [written("{dir}/f")]},
        files={"{dir}/f": "0600 0:0 hello"},
    ),
    Case(
        "mode and owner as the plan says",
        {"files": [written("{dir}/f", permissions="0640", uid=1234, gid=2345)]},
        files={"{dir}/f": "0640 1234:2345 hello"},
    ),
    Case(
        "directories on the way are made",
        {"files": [written("{dir}/new/deep/f")]},
        files={"{dir}/new": "0755 0:0", "{dir}/new/deep/f": "0600 0:0 hello"},
    ),
    Case(
        "what is there is replaced, and its mode and owner set right",
        {"files": [written("{dir}/f"), written("{dir}/same", "old")]},
        before={"{dir}/f": "old", "{dir}/same": "old"},
        files={"{dir}/f": "0600 0:0 hello", "{dir}/same": "0600 0:0 old"},
    ),
    Case(
        "an empty file",
        {"files": [{"path": "{dir}/f", "dynamic": True, "minor": True}]},
        files={"{dir}/f": "0600 0:0 "},
    ),
    Case(
        "directories",
        {
            "files": [
                {"path": "{dir}/d/e", "directory": True},
                {"path": "{dir}/x", "directory": True, "permissions": "700"},
            ]
        },
        files={"{dir}/d/e": "0755 0:0", "{dir}/x": "0700 0:0"},
    ),
    Case(
        "files and directories are removed, and what is not there is no error",
        {
            "files": [
                {"path": "{dir}/f", "action": "delete"},
                {"path": "{dir}/gone", "action": "delete"},
                {"path": "{dir}/d", "directory": True, "action": "delete"},
            ]
        },
        before={"{dir}/f": "old", "{dir}/d/e/f": "old"},
        files={"{dir}/f": "", "{dir}/d": ""},
    ),
    Case(
        "files are there before instructions run",
        new_plan(sh("cat {dir}/f"), files=[written("{dir}/f")]),
        outputs={"it": "hello\n"},
        files={"{dir}/f": "0600 0:0 hello"},
    ),
)

PERIODIC = (
    Case(
        "periodic instructions run with the plan",
        new_plan(sh("echo a"), periodicInstructions=[{**sh("echo b", "p"), "periodSeconds": 300}]),
        outputs={"it": "a\n"},
        periodic={"p": {"stdout": "b\n", "stderr": "", "exitCode": 0, "failures": 0, "lastFailedRunTime": ""}},
    ),
    Case(
        "their errors are kept where that is wanted",
        {"periodicInstructions": [sh("echo e >&2", "p", saveStderrOutput=True), sh("echo e >&2", "q")]},
        periodic={"p": {"stdout": None, "stderr": "e\n"}, "q": {"stdout": None, "stderr": ""}},
    ),
    Case(
        "one without a name is left out",
        {"periodicInstructions": [sh("echo b", ""), sh("echo c", "q")]},
        periodic={"q": {"stdout": "c\n"}},
    ),
    Case(
        "one that fails stops those after it, and not the plan",
        {"periodicInstructions": [sh("echo b; exit 4", "p"), sh("echo later", "q")]},
        periodic={"p": {"stdout": "b\n", "exitCode": 4, "failures": 1, "lastSuccessfulRunTime": ""}},
    ),
    Case(
        "they run also where the plan has failed, with attempt numbers of their own",
        new_plan(sh("exit 1"), periodicInstructions=[sh("echo $CATTLE_AGENT_ATTEMPT_NUMBER", "p")]),
        outcome=FAILED,
        outputs={"it": ""},
        periodic={"p": {"stdout": "1\n"}},
    ),
)

PROBES = (
    Case("a probe that is answered", {"probes": {"p": probe("{web}/ok")}}, probes={"p": _OK}),
    Case("several probes", {"probes": {"p": probe("{web}/ok"), "q": probe("{web}/bad")}}, probes={"p": _OK, "q": _BAD}),
    Case("204 is a success", {"probes": {"p": probe("{web}/empty")}}, probes={"p": _OK}),
    Case("an error is a failure", {"probes": {"p": probe("{web}/bad")}}, probes={"p": _BAD}),
    Case("a redirect elsewhere is a failure", {"probes": {"p": probe("{web}/away")}}, probes={"p": _BAD}),
    Case("nobody there", {"probes": {"p": probe("http://127.0.0.1:1/")}}, probes={"p": _BAD}),
    Case(
        "success counts up to its threshold",
        {"probes": {"p": probe("{web}/ok", successThreshold=3)}},
        probes={"p": {"healthy": True, "successCount": 3}},
    ),
    Case("an initial delay", {"probes": {"p": probe("{web}/ok", initialDelaySeconds=1)}}, probes={"p": _OK}),
    Case("TLS with its authority", {"probes": {"p": probe("{tls}/ok", caCert="{ca}")}}, probes={"p": _OK}),
    Case("TLS of nobody known", {"probes": {"p": probe("{tls}/ok")}}, probes={"p": _BAD}),
    Case("TLS unchecked", {"probes": {"p": probe("{tls}/ok", insecure=True)}}, probes={"p": _OK}),
    Case(
        "an authority that is not there", {"probes": {"p": probe("{tls}/ok", caCert="{dir}/none")}}, probes={"p": _BAD}
    ),
    Case(
        "probes of a plan that has failed",
        new_plan(sh("exit 1"), probes={"p": probe("{web}/ok")}),
        outcome=FAILED,
        outputs={"it": ""},
        probes={"p": _OK},
    ),
)

IMAGES = (
    Case(
        "an image's files are where it runs",
        new_plan({"image": "{registry}/tools/installer:v1", **sh("cat etc/file; sh -c 'run.sh x'")}),
        outputs={"it": "of layer two\nran x\n"},
    ),
    Case(
        "an image's own run.sh",
        new_plan({"name": "it", "image": "{registry}/tools/installer:v1", "args": ["y"], "saveOutput": True}),
        outputs={"it": "ran y\n"},
    ),
    Case(
        "what a layer takes away is gone",
        new_plan({"image": "{registry}/tools/installer:v1", **sh("ls -A; ls -A opaque")}),
        outputs={"it": "etc\nopaque\nrun.sh\nnew\n"},
        deviation="a directory that a layer empties keeps what was in it",
    ),
    Case(
        "by digest",
        new_plan({"image": "{registry}/tools/installer@{digest}", **sh("cat etc/file")}),
        outputs={"it": "of layer two\n"},
        deviation="archives have tags alone, so it does not even ask the registry",
    ),
    Case(
        "an index, for this machine",
        new_plan({"image": "{registry}/tools/many:v1", **sh("cat etc/file")}),
        outputs={"it": "of layer two\n"},
    ),
    Case(
        "by a mirror, under another name",
        new_plan({"image": "mirrored.test/orig/installer:v1", **sh("cat etc/file")}),
        outputs={"it": "of layer two\n"},
    ),
    Case(
        "an image that is not there",
        new_plan({"image": "{registry}/tools/none:v1", **sh("echo no")}),
        outcome=FAILED,
        outputs={"it": ""},
    ),
    Case(
        "an archive", new_plan({"image": "archived.test/tool:v1", **sh("cat etc/file")}), outputs={"it": "archived\n"}
    ),
    Case(
        "a compressed archive",
        new_plan({"image": "archived.test/zipped:v1", **sh("cat etc/file")}),
        outputs={"it": "archived\n"},
    ),
)

CASES = (*INSTRUCTIONS, *FILES, *PERIODIC, *PROBES, *IMAGES)


def fill_placeholders(value: Any, values: Mapping[str, str]) -> Any:
    """Replace the placeholders."""
    encoded = json.dumps(value)
    for name, text in values.items():
        encoded = encoded.replace("{" + name + "}", json.dumps(text)[1:-1])
    return json.loads(encoded)
