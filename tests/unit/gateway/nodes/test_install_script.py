"""Install scripts: a shell reads every value as it is, whatever characters it has."""

from __future__ import annotations

import base64
import gzip
import random
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from herder.agent import cli
from herder.api.management.commands import ca_checksum, commands
from herder.api.settings import Settings
from herder.gateway.nodes.install_script import (
    SCRIPTS,
    BadUserData,
    ScriptInputs,
    cloud_config,
    powershell_script,
    shell_script,
    uninstall_script,
)

SERVER = "https://manager.example.com"
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]
NASTY = [
    "$(touch OOPS)", "`touch OOPS`", "'; touch OOPS; '", '"; touch OOPS; "', "\\'; touch OOPS #", "a\nb",
    "a\n'\ntouch OOPS\n'", "$HOME ${HOME} ~ * ?", "", " ", "-n", "\\n\\t\\", "é ☃ 𝄞", "!!", "a' 'b", "'", "''",
    "\"", "a&b|c>d<e;f(g)h{i}#j", "\t",
]  # fmt: skip


def inputs(**fields: object) -> ScriptInputs:
    return ScriptInputs(**{"server": SERVER, "checksum": "c" * 64, **fields})  # type: ignore[arg-type]


def values_in_shell(shell: str, script: str, names: list[str], directory: Path) -> list[bytes]:
    """The values that a real shell finds, without running anything after the prologue."""
    prologue = script[: script.index("\n# Install the node agent")]
    references = " ".join(f'"${name}"' for name in names)
    shell_command = [shell, "sh"] if shell == "busybox" else [shell]
    command = [*shell_command, "-c", f"{prologue}\nprintf '%s\\0' {references}"]
    result = subprocess.run(command, cwd=directory, capture_output=True, check=True, timeout=30)
    assert result.stderr == b""
    assert list(directory.iterdir()) == [], "part of a value was executed"
    return result.stdout.split(b"\0")[:-1]


@pytest.mark.parametrize("shell", SHELLS)
def test_values_are_quoted(shell: str, tmp_path: Path) -> None:
    variables = tuple((f"V{number}", value) for number, value in enumerate(NASTY))
    script = shell_script(inputs(variables=variables, token=NASTY[2], server=NASTY[0], checksum=NASTY[1]))
    names = [*(name for name, _ in variables), "CATTLE_TOKEN", "CATTLE_SERVER", "CATTLE_CA_CHECKSUM"]
    found = values_in_shell(shell, script, names, tmp_path)
    assert found == [value.encode() for value in (*NASTY, NASTY[2], NASTY[0], NASTY[1])]


@pytest.mark.parametrize("seed", range(5))
def test_random_values_are_quoted(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    letters = "".join(map(chr, [9, 10, *range(32, 127), 0xE9, 0x2603])) + "'\"$`\\!;&|" * 4
    values = ["".join(rng.choices(letters, k=rng.randrange(40))) for _ in range(60)]
    variables = tuple((f"V{number}", value) for number, value in enumerate(values))
    found = values_in_shell(
        "dash", shell_script(inputs(variables=variables)), [name for name, _ in variables], tmp_path
    )
    assert found == [value.encode() for value in values]


def test_the_prologue_names_the_manager_and_its_ca() -> None:
    flags = {"server-url": f"{SERVER}/", "cacerts": "some certificates"}
    lines = shell_script(ScriptInputs.of(Settings(flags=flags).get)).splitlines()
    assert lines[:5] == [
        "#!/usr/bin/env sh",
        "export STRICT_VERIFY='true'",
        f"CATTLE_AGENT_BINARY_BASE_URL='{SERVER}/assets'",
        f"CATTLE_SERVER='{SERVER}'",
        f"CATTLE_CA_CHECKSUM='{ca_checksum('some certificates')}'",
    ]
    assert not any(line.startswith(("CATTLE_TOKEN", "CATTLE_ROLE_NONE")) for line in lines[:8])


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"strict": False}, "export STRICT_VERIFY='false'"),
        ({"variables": (("STRICT_VERIFY", "maybe"),)}, "export STRICT_VERIFY='maybe'"),
        ({"variables": (("HTTPS_PROXY", "http://p:1"),)}, "export HTTPS_PROXY='http://p:1'"),
        ({"token": "abc"}, "CATTLE_TOKEN='abc'"),
        ({"token": "abc"}, "CATTLE_ROLE_NONE='true'"),
    ],
)
def test_optional_lines_of_the_prologue(fields: dict[str, object], line: str) -> None:
    lines = shell_script(inputs(**fields)).splitlines()
    assert lines.count(line) == 1
    assert sum(each.startswith("export STRICT_VERIFY") for each in lines) == 1


def test_repr_does_not_show_the_token() -> None:
    assert "very-secret" not in repr(inputs(token="very-secret"))


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_have_valid_syntax(shell: str, tmp_path: Path) -> None:
    for name, script in (("install", shell_script(inputs())), ("uninstall", uninstall_script())):
        path = tmp_path / name
        path.write_text(script)
        shell_command = [shell, "sh"] if shell == "busybox" else [shell]
        subprocess.run([*shell_command, "-n", path], check=True, timeout=30)


# --- PowerShell -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("plain", "$env:V = 'plain'"),
        ('$(Remove-Item C:\\) `n "', "$env:V = '$(Remove-Item C:\\) `n \"'"),
        ("it's", "$env:V = 'it''s'"),
        ("it\u2019s \u2018so\u201b", "$env:V = 'it\u2019\u2019s \u2018\u2018so\u201b\u201b'"),
    ],
)
def test_powershell_values_are_quoted(value: str, line: str) -> None:
    assert powershell_script(inputs(variables=(("V", value),))).splitlines()[0] == line


def test_the_powershell_script_pins_the_ca_first_and_hides_the_token() -> None:
    script = (SCRIPTS / "install.ps1").read_text()
    steps = ["$Server/cacerts", "Get-FileHash", "$Server/healthz", "herder-agent.pyz", "$Server/v3/connect/agent"]
    positions = [script.index(step) for step in steps]
    assert positions == sorted(positions)
    curl_line = next(line for line in script.splitlines() if "& $curl" in line)
    assert "--config $request" in curl_line
    assert "Token" not in curl_line
    assert script.count("{") == script.count("}")
    assert script.count("(") == script.count(")")


def test_the_powershell_script_accepts_the_parameters_of_upstream() -> None:
    script = (SCRIPTS / "install.ps1").read_text()
    declared = set(re.findall(r"^        \[(?:String|String\[\]|Switch)\] \$(\w+)", script, re.MULTILINE))
    upstream = {"Address", "CaChecksum", "InternalAddress", "Label", "NodeName", "Server", "Taint", "Token", "Worker"}
    assert declared == upstream
    command = commands(SERVER, "c-m-meadow22", "some certificates")["windowsNodeCommand"]
    assert set(re.findall(r" -([A-Z]\w+) ", command.partition("./install.ps1")[2])) <= declared
    documented = script.partition("# Environment")[2].partition("function ")[0]
    for name in ("LOGLEVEL", "CONFIG_DIR", "VAR_DIR", "STRICT_VERIFY", "BINARY_URL", "BINARY_CHECKSUM"):
        assert name.rpartition("BINARY_")[2] in documented
        assert f"$env:CATTLE_AGENT_{name}" in script


def test_the_powershell_script_uses_only_known_agent_commands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = (SCRIPTS / "install.ps1").read_text()
    used = set(re.findall(r'\$agent(?:`")? ([a-z-]+)', script))
    assert used == {"validate-connection", "service"}
    missing_config = str(tmp_path / "none.yaml")
    monkeypatch.setattr(cli, "os", SimpleNamespace(name="nt", environ={"CATTLE_AGENT_CONFIG": missing_config}))
    for command in used:
        assert cli.main([command, missing_config]) == 1
        assert "unknown command" not in capsys.readouterr().err


# --- cloud-init -----------------------------------------------------------------------------------------------------


def test_cloud_config_runs_the_script_before_user_commands() -> None:
    user = yaml.safe_dump({"runcmd": ["echo mine"], "write_files": [{"path": "/mine"}], "ssh_pwauth": False})
    rendered = cloud_config("#!/bin/sh\necho hi\n", user)
    assert rendered.startswith("## template: jinja\n#cloud-config\n")
    config = yaml.safe_load(rendered)
    assert config["runcmd"] == ["sh /usr/local/custom_script/install.sh", "echo mine"]
    install_file, user_file = config["write_files"]
    assert (install_file["path"], install_file["permissions"], user_file["path"]) == (
        "/usr/local/custom_script/install.sh",
        "0600",
        "/mine",
    )
    assert gzip.decompress(base64.b64decode(install_file["content"])) == b"#!/bin/sh\necho hi\n"
    assert config["ssh_pwauth"] is False


@pytest.mark.parametrize(
    ("user", "problem"),
    [
        ("runcmd: yes please", "runcmd must be a list"),
        ("write_files: {a: b}", "write_files must be a list"),
        ("- a\n- b", "must be a mapping"),
        ("a: b: 'secret", "not YAML (line 1)"),
        ("a: " + "[" * 100_000, "levels deep"),
        ("a: [" + "1," * 50_000 + "]", "tokens"),
        ("a: " + ":".join(["59"] * 50_000), "a number of more than"),
    ],
)
def test_invalid_user_data_is_reported_without_its_content(user: str, problem: str) -> None:
    with pytest.raises(BadUserData, match=r"spec\.userdata\.inlineUserdata") as raised:
        cloud_config("#!/bin/sh\n", user)
    assert problem in str(raised.value)
    assert "secret" not in str(raised.value)
