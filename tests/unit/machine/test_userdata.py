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


def merged(script: bytes = SCRIPT, user: bytes = b"", **options: Any) -> dict[str, Any]:
    result = cloud_config(script, user, hostname="m1", **options)
    assert b"#cloud-config\n" in result.splitlines(keepends=True)[:2]
    parsed: dict[str, Any] = yaml.safe_load(result)
    return parsed


def body(write_file: dict[str, Any]) -> bytes:
    assert write_file["encoding"] == "gzip+b64"
    return gzip.decompress(base64.b64decode(write_file["content"]))


def test_a_script_is_written_and_run_and_the_hostname_is_set() -> None:
    config = merged()
    (write_file,) = config["write_files"]
    assert (write_file["path"], write_file["permissions"]) == ("/usr/local/custom_script/install.sh", "0600")
    assert body(write_file) == b"echo join\n"  # without the shebang line, since sh runs it
    assert config["runcmd"] == ["sh /usr/local/custom_script/install.sh"]
    assert config["hostname"] == "m1"


def test_windows_machines_run_powershell() -> None:
    config = merged(windows=True)
    assert config["write_files"][0]["path"] == "C:\\install.ps1"
    assert config["runcmd"] == ["powershell C:\\install.ps1"]
    assert (config["set_hostname"], config.get("hostname")) == ("m1", None)


def test_a_users_cloud_config_keeps_its_values_and_runs_first() -> None:
    user = b"#cloud-config\nhostname: mine\npackages: [vim]\nruncmd: [first]\nwrite_files: [{path: /a, content: x}]\n"
    config = merged(user=user)
    assert (config["hostname"], config["packages"]) == ("mine", ["vim"])
    assert config["runcmd"] == ["first", "sh /usr/local/custom_script/install.sh"]
    assert config["write_files"][0] == {"path": "/a", "content": "x"}


def test_an_empty_cloud_config_is_accepted() -> None:
    assert merged(user=b"#cloud-config\n") == merged()


def test_a_users_script_runs_before_ours() -> None:
    (write_file,) = merged(user=b"#!/bin/bash\necho mine\n")["write_files"]
    assert body(write_file) == b"echo mine\n\n\necho join\n"


def test_yaml_values_keep_their_types() -> None:
    write_file = b"- path: /a\n  permissions: 0644\n  content: |\n    a: 'b'\n    c\n"
    user = b"#cloud-config\nssh_pwauth: no\nwrite_files:\n" + write_file
    config = merged(user=user)
    assert config["ssh_pwauth"] is False
    assert config["write_files"][0] == {"path": "/a", "permissions": 0o644, "content": "a: 'b'\nc\n"}


class TestCloudConfigBootstrapData:
    """Bootstrap data of other Cluster API bootstrap providers."""

    DATA = (
        b"#cloud-config\nwrite_files: [{path: /run/kubeadm.yaml, content: x}]\nruncmd: [kubeadm join]\n"
        b"hostname: theirs\nntp: {enabled: true, servers: [a]}\n"
    )

    def test_it_is_used_unchanged(self) -> None:
        config = merged(self.DATA)
        assert config["runcmd"] == ["kubeadm join"]
        assert config["hostname"] == "theirs"

    def test_lists_are_merged_and_scalars_of_the_user_win(self) -> None:
        config = merged(
            self.DATA, b"#cloud-config\nhostname: mine\nruncmd: [first]\nntp: {enabled: false, servers: [b]}\n"
        )
        assert config["runcmd"] == ["first", "kubeadm join"]
        assert config["hostname"] == "mine"
        assert config["ntp"] == {"enabled": False, "servers": ["b", "a"]}

    def test_a_users_script_runs_before_it(self) -> None:
        config = merged(self.DATA, b"#!/bin/sh\necho mine\n")
        assert config["runcmd"] == ["sh /usr/local/custom_script/install.sh", "kubeadm join"]
        assert body(config["write_files"][0]) == b"echo mine\n"

    def test_a_jinja_template_is_kept(self) -> None:
        data = b'## template: jinja\n#cloud-config\nruncmd: ["kubeadm join --name {{ ds.meta_data.local_hostname }}"]\n'
        assert is_cloud_config(data)
        result = cloud_config(data, hostname="m1")
        assert result.startswith(b"## template: jinja\n#cloud-config\n")
        assert b"--name {{ ds.meta_data.local_hostname }}" in result


@pytest.mark.parametrize(
    ("script", "user", "message"),
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
def test_data_that_cannot_be_merged_is_rejected_with_the_reason(script: bytes, user: bytes, message: str) -> None:
    with pytest.raises(MachineError, match=message):
        cloud_config(script, user, hostname="m1")


def test_an_error_does_not_quote_the_data() -> None:
    with pytest.raises(MachineError) as caught:
        cloud_config(SCRIPT, b"#cloud-config\npassword: [hunter2\n", hostname="m1")
    assert "hunter2" not in str(caught.value)
