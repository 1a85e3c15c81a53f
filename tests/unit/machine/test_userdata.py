"""The install script and the user's own data become one `#cloud-config`."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import pytest
import yaml

from herder.machine.errors import MachineError
from herder.machine.userdata import cloud_config, is_cloud_config

SCRIPT = b"#!/bin/sh\necho join\n"


def made(script: bytes = SCRIPT, user: bytes = b"", **options: Any) -> dict[str, Any]:
    result = cloud_config(script, user, hostname="m1", **options)
    assert b"#cloud-config\n" in result.splitlines(keepends=True)[:2]
    parsed: dict[str, Any] = yaml.safe_load(result)
    return parsed


def body(written: dict[str, Any]) -> bytes:
    assert written["encoding"] == "gzip+b64"
    return gzip.decompress(base64.b64decode(written["content"]))


def test_a_script_alone_is_written_and_run_and_the_machine_gets_its_name() -> None:
    config = made()
    (written,) = config["write_files"]
    assert (written["path"], written["permissions"]) == ("/usr/local/custom_script/install.sh", "0600")
    assert body(written) == b"echo join\n"  # without its first line: sh runs it
    assert config["runcmd"] == ["sh /usr/local/custom_script/install.sh"]
    assert config["hostname"] == "m1"


def test_on_windows_it_is_powershell() -> None:
    config = made(windows=True)
    assert config["write_files"][0]["path"] == "C:\\install.ps1"
    assert config["runcmd"] == ["powershell C:\\install.ps1"]
    assert (config["set_hostname"], config.get("hostname")) == ("m1", None)


def test_a_users_cloud_config_keeps_its_own_and_comes_first() -> None:
    user = b"#cloud-config\nhostname: mine\npackages: [vim]\nruncmd: [first]\nwrite_files: [{path: /a, content: x}]\n"
    config = made(user=user)
    assert (config["hostname"], config["packages"]) == ("mine", ["vim"])
    assert config["runcmd"] == ["first", "sh /usr/local/custom_script/install.sh"]
    assert config["write_files"][0] == {"path": "/a", "content": "x"}


def test_an_empty_cloud_config_is_one() -> None:
    assert made(user=b"#cloud-config\n") == made()


def test_a_users_script_runs_before_ours() -> None:
    (written,) = made(user=b"#!/bin/bash\necho mine\n")["write_files"]
    assert body(written) == b"echo mine\n\n\necho join\n"


def test_values_keep_their_meaning() -> None:
    written = b"- path: /a\n  permissions: 0644\n  content: |\n    a: 'b'\n    c\n"
    user = b"#cloud-config\nssh_pwauth: no\nwrite_files:\n" + written
    config = made(user=user)
    assert config["ssh_pwauth"] is False
    assert config["write_files"][0] == {"path": "/a", "permissions": 0o644, "content": "a: 'b'\nc\n"}


class TestBootstrapDataThatIsCloudConfigItself:
    """As providers of Cluster API other than ours make it."""

    DATA = (
        b"#cloud-config\nwrite_files: [{path: /run/kubeadm.yaml, content: x}]\nruncmd: [kubeadm join]\n"
        b"hostname: theirs\nntp: {enabled: true, servers: [a]}\n"
    )

    def test_it_is_taken_as_it_is(self) -> None:
        config = made(self.DATA)
        assert config["runcmd"] == ["kubeadm join"]
        assert config["hostname"] == "theirs"

    def test_lists_are_appended_and_of_single_values_the_users_stay(self) -> None:
        config = made(
            self.DATA, b"#cloud-config\nhostname: mine\nruncmd: [first]\nntp: {enabled: false, servers: [b]}\n"
        )
        assert config["runcmd"] == ["first", "kubeadm join"]
        assert config["hostname"] == "mine"
        assert config["ntp"] == {"enabled": False, "servers": ["b", "a"]}

    def test_a_users_script_runs_before_it(self) -> None:
        config = made(self.DATA, b"#!/bin/sh\necho mine\n")
        assert config["runcmd"] == ["sh /usr/local/custom_script/install.sh", "kubeadm join"]
        assert body(config["write_files"][0]) == b"echo mine\n"

    def test_a_jinja_template_stays_one(self) -> None:
        data = b'## template: jinja\n#cloud-config\nruncmd: ["kubeadm join --name {{ ds.meta_data.local_hostname }}"]\n'
        assert is_cloud_config(data)
        result = cloud_config(data, hostname="m1")
        assert result.startswith(b"## template: jinja\n#cloud-config\n")
        assert b"--name {{ ds.meta_data.local_hostname }}" in result


@pytest.mark.parametrize(
    ("script", "user", "told"),
    [
        (SCRIPT, b"hello", "start it with #! or #cloud-config"),
        (SCRIPT, b"#cloud-config\n- a\n", "must be a mapping"),
        (SCRIPT, b"#cloud-config\na: [\n", r"the user data: not YAML \(line"),
        (SCRIPT, b"#cloud-config\nruncmd: text\n", "runcmd that is not a list"),
        (SCRIPT, b"## template: jinja\n#cloud-config\nhostname: {{ v1.name }}\n", "put quotes around"),
        (b'{"ignition": {"version": "3.4.0"}}', b"", "Ignition bootstrap data is not supported"),
    ],
    ids=["no known kind", "a list", "not YAML", "runcmd", "jinja that is no YAML", "ignition"],
)
def test_what_cannot_be_merged_is_refused_in_words(script: bytes, user: bytes, told: str) -> None:
    with pytest.raises(MachineError, match=told):
        cloud_config(script, user, hostname="m1")


def test_an_error_does_not_quote_the_data() -> None:
    with pytest.raises(MachineError) as caught:
        cloud_config(SCRIPT, b"#cloud-config\npassword: [hunter2\n", hostname="m1")
    assert "hunter2" not in str(caught.value)
