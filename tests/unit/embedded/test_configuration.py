"""What a machine of the embedded distribution is told, and how it is told what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from herder.embedded.configuration import ConfigurationError, read

LEAST = '{"token": "join-me", "node-ip": ["10.0.0.1"]}'


def written(directory: Path, **files: str) -> Path:
    (directory / "config.yaml.d").mkdir()
    for name, text in files.items():
        where = directory / "config.yaml" if name == "first" else directory / "config.yaml.d" / f"{name}.yaml"
        where.write_text(text)
    return directory


def test_later_files_replace_keys_and_add_to_lists(tmp_path: Path) -> None:
    files = {
        "first": "node-name: a\nnode-label: [zone=one]",
        "a50": LEAST,
        "a60": '{"node-name": "b", "node-label+": ["team=blue"]}',
    }
    told = read(written(tmp_path, **files))
    assert told.node_name == "b"
    assert told.labels == (("zone", "one"), ("team", "blue"))
    assert told.address == "10.0.0.1"


def test_a_taint_may_have_a_value(tmp_path: Path) -> None:
    told = read(written(tmp_path, a=LEAST, b='{"node-taint": ["gpu=yes:NoExecute", "own:NoSchedule"]}'))
    assert told.taints == (("gpu", "yes", "NoExecute"), ("own", "", "NoSchedule"))


def test_what_a_node_is_told_is_shown_but_for_its_secrets(tmp_path: Path) -> None:
    told = read(written(tmp_path, a=LEAST, b='{"node-name": "a", "node-label": ["zone=one"]}')).arguments
    assert told[:6] == ["--node-name", "a", "--node-ip", "10.0.0.1", "--node-label", "zone=one"]
    assert told[-2:] == ["--token", "********"]


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
def test_what_is_wrong_is_told_by_the_name_of_its_key(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem.replace("[", r"\[")):
        read(written(tmp_path, a=text))


def test_nothing_that_was_told_is_shown(tmp_path: Path) -> None:
    told = read(written(tmp_path, a='{"token": "join-me", "agent-token": "others", "node-ip": ["10.0.0.1"]}'))
    assert "join-me" not in repr(told)
    assert "others" not in repr(told)
