"""The table of plans that both node agents are given: what each does, and how it may end."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.node_agents import once, sh

SUCCEEDED, FAILED = "succeeded", "failed"


@dataclass(frozen=True)
class Case:
    """`{dir}`, `{web}`, `{registry}` and the like stand for places: an agent's own, or those that both share."""

    name: str
    plan: Mapping[str, Any]
    ends: str = SUCCEEDED
    says: Mapping[str, str] = field(default_factory=dict)  # saved outputs, by instruction
    files: Mapping[str, str] = field(default_factory=dict)  # afterwards: path to "mode uid:gid content"; "" is absent
    before: Mapping[str, str] = field(default_factory=dict)  # files that are there already
    probes: Mapping[str, Any] = field(default_factory=dict)  # statuses in the end
    periodic: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # fields of their outputs
    data: Mapping[str, str] = field(default_factory=dict)  # more of the Secret
    trap: str = ""  # why the Go agent does otherwise; ours alone is held to the table then
    shown: bool = True  # that it does otherwise can be seen in reasonable time


def written(path: str, content: str = "hello", **more: Any) -> dict[str, Any]:
    return {"path": path, "content": base64.b64encode(content.encode()).decode(), **more}


def probe(url: str, **more: Any) -> dict[str, Any]:
    http = {key: more.pop(key) for key in ("insecure", "caCert", "clientCert", "clientKey") if key in more}
    return {"timeoutSeconds": 5, "failureThreshold": 2, **more, "httpGet": {"url": url, **http}}


_OK = {"healthy": True, "successCount": 1}
_BAD = {"failureCount": 2}

INSTRUCTIONS = (
    Case("its output is kept", once(sh("echo hi")), says={"it": "hi\n"}),
    Case(
        "instructions run in their order",
        once(sh("echo 1 >> {dir}/order"), sh("echo 2 >> {dir}/order", "b"), sh("cat {dir}/order", "c")),
        says={"it": "", "b": "", "c": "1\n2\n"},
    ),
    Case("output that is not to be saved is not", once(sh("echo hi", saveOutput=False)), says={}),
    Case("output without a name is not saved", once(sh("echo hi", "")), says={}),
    Case("errors are not in the output", once(sh("echo out; echo err >&2")), says={"it": "out\n"}),
    Case("a last line without its end gets one", once(sh("printf 'a\\nb'")), says={"it": "a\nb\n"}),
    Case("carriage returns at the ends of lines go", once(sh("printf 'a\\r\\nb\\r'")), says={"it": "a\nb\n"}),
    Case("empty lines stay", once(sh("printf '\\n\\na\\n\\n'")), says={"it": "\n\na\n\n"}),
    Case("silence is kept too", once(sh("true")), says={"it": ""}),
    Case(
        "the instruction's environment",
        once(sh("echo $A-$B", env=["A=1", "B=x y=z"])),
        says={"it": "1-x y=z\n"},
    ),
    Case(
        "it runs in a directory of its own, which is last on its path",
        once(
            sh(
                'test "$PWD" = "$CATTLE_AGENT_EXECUTION_PWD" && test "${PATH##*:}" = "$PWD" '
                '&& ls | wc -l && basename "$PWD" | cut -d_ -f2'
            ),
            sh('basename "$PWD" | cut -d_ -f2', "second"),
        ),
        says={"it": "0\n0\n", "second": "1\n"},
    ),
    Case("the first attempt is number one", once(sh("echo $CATTLE_AGENT_ATTEMPT_NUMBER")), says={"it": "1\n"}),
    Case(
        "arguments reach it as they are",
        once({"name": "it", "command": "printf", "args": ["%s|", "a b", "$HOME", "'", ""], "saveOutput": True}),
        says={"it": "a b|$HOME|'||\n"},
    ),
    Case("nothing is read from a terminal", once(sh("cat; echo end")), says={"it": "end\n"}),
    Case("a plan of nothing succeeds", {}),
    Case("unknown fields are ignored", once(sh("echo hi", script="x"), unknown={"a": 1}), says={"it": "hi\n"}),
    Case(
        "a failure ends the plan",
        once(sh("echo a"), sh("echo b; exit 3", "bad"), sh("touch {dir}/never", "never")),
        ends=FAILED,
        says={"it": "a\n", "bad": "b\n"},
        files={"{dir}/never": ""},
    ),
    Case("a program that is not there", once({"name": "it", "command": "no-such-program"}), ends=FAILED),
    Case("a program that a signal ends", once(sh("kill -9 $$")), ends=FAILED, says={"it": ""}),
    Case("without a command and an image there is no run.sh", once({"name": "it"}), ends=FAILED),
    Case(
        "a line longer than any buffer",
        once(sh("head -c 200000 /dev/zero | tr '\\0' x | wc -c; head -c 70000 /dev/zero | tr '\\0' x")),
        says={"it": "200000\n" + "x" * 70000 + "\n"},
        trap="lines beyond 64 KiB end its capture",
    ),
    Case(
        "a child that stays behind does not hold the plan up",
        once(sh("sleep 300 & echo $! > {dir}/child; echo hi"), sh("kill $(cat {dir}/child)", "end")),
        says={"it": "hi\n", "end": ""},
        trap="it waits until nobody has the output open any more",
        shown=False,
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
        once(sh("cat {dir}/f"), files=[written("{dir}/f")]),
        says={"it": "hello\n"},
        files={"{dir}/f": "0600 0:0 hello"},
    ),
)

PERIODIC = (
    Case(
        "periodic instructions run with the plan",
        once(sh("echo a"), periodicInstructions=[{**sh("echo b", "p"), "periodSeconds": 300}]),
        says={"it": "a\n"},
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
        once(sh("exit 1"), periodicInstructions=[sh("echo $CATTLE_AGENT_ATTEMPT_NUMBER", "p")]),
        ends=FAILED,
        says={"it": ""},
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
        once(sh("exit 1"), probes={"p": probe("{web}/ok")}),
        ends=FAILED,
        says={"it": ""},
        probes={"p": _OK},
    ),
)

IMAGES = (
    Case(
        "an image's files are where it runs",
        once({"image": "{registry}/tools/installer:v1", **sh("cat etc/file; sh -c 'run.sh x'")}),
        says={"it": "of layer two\nran x\n"},
    ),
    Case(
        "an image's own run.sh",
        once({"name": "it", "image": "{registry}/tools/installer:v1", "args": ["y"], "saveOutput": True}),
        says={"it": "ran y\n"},
    ),
    Case(
        "what a layer takes away is gone",
        once({"image": "{registry}/tools/installer:v1", **sh("ls -A; ls -A opaque")}),
        says={"it": "etc\nopaque\nrun.sh\nnew\n"},
        trap="a directory that a layer empties keeps what was in it",
    ),
    Case(
        "by digest",
        once({"image": "{registry}/tools/installer@{digest}", **sh("cat etc/file")}),
        says={"it": "of layer two\n"},
        trap="archives have tags alone, so it does not even ask the registry",
    ),
    Case(
        "an index, for this machine",
        once({"image": "{registry}/tools/many:v1", **sh("cat etc/file")}),
        says={"it": "of layer two\n"},
    ),
    Case(
        "by a mirror, under another name",
        once({"image": "mirrored.test/orig/installer:v1", **sh("cat etc/file")}),
        says={"it": "of layer two\n"},
    ),
    Case(
        "an image that is not there",
        once({"image": "{registry}/tools/none:v1", **sh("echo no")}),
        ends=FAILED,
        says={"it": ""},
    ),
    Case("an archive", once({"image": "archived.test/tool:v1", **sh("cat etc/file")}), says={"it": "archived\n"}),
    Case(
        "a compressed archive",
        once({"image": "archived.test/zipped:v1", **sh("cat etc/file")}),
        says={"it": "archived\n"},
    ),
)

CASES = (*INSTRUCTIONS, *FILES, *PERIODIC, *PROBES, *IMAGES)


def filled(value: Any, words: Mapping[str, str]) -> Any:
    """With what the placeholders stand for."""
    text = json.dumps(value)
    for name, word in words.items():
        text = text.replace("{" + name + "}", json.dumps(word)[1:-1])
    return json.loads(text)
