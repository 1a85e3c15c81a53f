"""Configuration files of the embedded distribution, and reports of errors in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from herder.embedded.configuration import ConfigurationError, read

MINIMAL = '{"token": "join-me", "node-ip": ["10.0.0.1"]}'


def write_files(directory: Path, **files: str) -> Path:
    (directory / "config.yaml.d").mkdir()
    for name, text in files.items():
        path = directory / "config.yaml" if name == "first" else directory / "config.yaml.d" / f"{name}.yaml"
        path.write_text(text)
    return directory


def test_later_files_replace_keys_and_add_to_lists(tmp_path: Path) -> None:
    files = {
        "first": "node-name: a\nnode-label: [zone=one]",
        "a50": MINIMAL,
        "a60": '{"node-name": "b", "node-label+": ["team=blue"]}',
    }
    configuration = read(write_files(tmp_path, **files))
    assert configuration.node_name == "b"
    assert configuration.labels == (("zone", "one"), ("team", "blue"))
    assert configuration.address == "10.0.0.1"


def test_a_taint_may_have_a_value(tmp_path: Path) -> None:
    configuration = read(write_files(tmp_path, a=MINIMAL, b='{"node-taint": ["gpu=yes:NoExecute", "own:NoSchedule"]}'))
    assert configuration.taints == (("gpu", "yes", "NoExecute"), ("own", "", "NoSchedule"))


def test_arguments_of_a_node_hide_its_secrets(tmp_path: Path) -> None:
    arguments = read(write_files(tmp_path, a=MINIMAL, b='{"node-name": "a", "node-label": ["zone=one"]}')).arguments
    assert arguments[:6] == ["--node-name", "a", "--node-ip", "10.0.0.1", "--node-label", "zone=one"]
    assert arguments[-2:] == ["--token", "********"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"node-ip": ["10.0.0.1"]}', "token is required"),
        ('{"token": "secret-canary-token"}', "node-ip is required"),
        ('{"token": "t", "node-ip": ["here"]}', "node-ip: 'here' is not an IP address"),
        ('{"token": "t", "node-ip": "10.0.0.1", "node-label": ["alone"]}', "node-label: 'alone' must be key=value"),
        ('{"token": "t", "node-ip": "10.0.0.1", "node-taint": ["k:Never"]}', "node-taint: 'k:Never' must be"),
        ('{"token": "t", "node-ip": "10.0.0.1", "cni": "calico"}', "cni: unknown key"),
        ('{"token": 7, "node-ip": "10.0.0.1"}', "token: must be a string"),
        ("token: [unclosed", "not YAML, line"),
        ("- a list", "must be a mapping"),
    ],
)
def test_errors_name_the_key(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem.replace("[", r"\[")):
        read(write_files(tmp_path, a=text))


def test_repr_does_not_show_tokens(tmp_path: Path) -> None:
    configuration = read(
        write_files(tmp_path, a='{"token": "join-me", "agent-token": "others", "node-ip": ["10.0.0.1"]}')
    )
    assert "join-me" not in repr(configuration)
    assert "others" not in repr(configuration)
