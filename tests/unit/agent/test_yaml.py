"""The supported subset of YAML, compared with PyYAML, and what is rejected."""

from __future__ import annotations

import pytest
import yaml as pyyaml

from herder.agent import yaml
from herder.agent.secret import kubeconfig
from tests.support.canaries import canary

SUPPORTED = {
    "nothing": "",
    "a comment alone": "# hello\n",
    "scalars": "a: 1\nb: true\nc: null\nd: ~\ne:\nf: TRUE\ng: text with spaces\nh: '1'\ni: \"tab\\t\\u00e9\"\nj: -3\n",
    "quotes": "a: 'it''s'\nb: \"say \\\"hi\\\"\"\nc: 'x # y'\nd: \"#\"\n",
    "comments": "a: b # c\n# d\nurl: http://x/#frag\n",
    "colons in values": "server: https://127.0.0.1:6443\ntime: a:b\n",
    "nested": "a:\n  b:\n    c: 1\n  d: 2\ne: 3\n",
    "lists": "a:\n- 1\n- x\nb:\n  - y\n  - z\nc: []\nd: {}\n",
    "lists of mappings": "- name: a\n  value:\n    x: 1\n- name: b\n-\n  name: c\n",
    "lists of lists": "- - 1\n  - 2\n- - 3\n",
    "flow": "a: [1, 'two', \"three\", four, [5]]\nb: {c: 1, \"d\": [x], 'e': {f: null}}\n",
    "blocks": "a: |\n  one\n    two\n\n  three\nb: |-\n  x\nc: >\n  folded\n  text\nd: 1\n",
    "a block of a kubeconfig": "kubeConfig: |\n  clusters:\n  - cluster:\n      server: https://x\nnamespace: n\n",
    "keys in quotes": "'*':\n  endpoint: [a]\n\"x:5000\": y\nplain.host:5000:\n  z: 1\n",
    "a document that begins": "---\na: 1\n",
    "a document that ends": "a: 1\n...\n",
    "a mark at the beginning": "\ufeffa: 1\n",
    "words": "a: True\nb: FALSE\nc: NULL\nd: true story\n",
    "windows": "a: 1\r\nb:\r\n  - c\r\n",
    "json": '{"a": [1, 2, {"b": null}], "c": "d"}',
    "json over lines": '{\n  "a": 1\n}\n',
}


@pytest.mark.parametrize("text", SUPPORTED.values(), ids=SUPPORTED)
def test_supported_yaml_is_read_as_pyyaml_reads_it(text: str) -> None:
    assert yaml.load(text) == pyyaml.safe_load(text)


@pytest.mark.parametrize("text", ["0600", "0x1f", "1e5", "1.50", "1_000", "yes", "off", "2026-01-01", "+1", "12:30"])
def test_values_that_yaml_versions_disagree_on_stay_text(text: str) -> None:
    assert yaml.load(f"password: {text}\n") == {"password": text}
    assert yaml.load(f"passwords: [{text}]\n") == {"passwords": [text]}


UNSUPPORTED = {
    "an anchor": ("a: &x 1\n", "line 1: '&'"),
    "an alias": ("a: 1\nb: *x\n", "line 2: '*'"),
    "a tag": ("a: !!str 1\n", "line 1: '!'"),
    "two documents": ("a: 1\n---\nb: 2\n", "line 2: a second document"),
    "a scalar over lines": ("a: one\n  two\n", "line 2"),
    "a key twice": ("a: 1\na: 2\n", "line 2: the key 'a' is there twice"),
    "a tab": ("a:\n\tb: 1\n", "line 2: a tab"),
    "an open quote": ("a: 'b\n", "line 1: a quote"),
    "an open list": ("a: [1,\n  2]\n", "line 1"),
    "no key": ("a: 1\nb\n", "line 2: expected 'key: value'"),
    "a key in a value": ("a: b: c\n", "line 1: a value that"),
    "an item in a value": ("a: - b\n", "line 1: a value that"),
    "a merge": ("a: 1\n<<: x\n", "line 2: merging"),
    "a block that keeps": ("a: |+\n  x\n", "line 1: '|'"),
    "a block with its own indentation": ("a: |2\n   x\n", "line 1: '|'"),
    "a folded block of paragraphs": ("a: >\n  x\n\n  y\nb: 1\n", "line 4: in a block with '>'"),
    "a folded block with more indentation": ("a: >\n  x\n    y\n", "line 3: in a block with '>'"),
    "something after a value": ("a: 'b' c\n", "line 1: there is something after"),
}


@pytest.mark.parametrize(("text", "message"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_unsupported_yaml_is_rejected_with_its_line(text: str, message: str) -> None:
    with pytest.raises(yaml.YamlError, match=r"^line \d+: ") as found:
        yaml.load(text)
    assert message in str(found.value)


@pytest.mark.parametrize("line", ["{}", "password: x: {}", "password: 'x' {}", "password: ['{}", 'password: "{}'])
def test_errors_do_not_contain_rejected_values(line: str) -> None:
    secret = canary("file")
    with pytest.raises(yaml.YamlError) as found:
        yaml.load("a: 1\n" + line.format(secret) + "\n")
    assert secret not in str(found.value)


def test_a_kubeconfig_from_a_server_is_parsed() -> None:
    text = pyyaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
            "clusters": [
                {"name": "other", "cluster": {"server": "https://other"}},
                {"name": "k", "cluster": {"server": "https://h:6443/", "certificate-authority-data": "Y2E="}},
            ],
            "users": [{"name": "u", "user": {"token": "t", "client-certificate-data": "Yw=="}}],
        }
    )
    access = kubeconfig.parse(text)
    assert (access.server, access.ca, access.token, access.client_cert) == ("https://h:6443", b"ca", "t", b"c")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"current-context": "x"}, "contexts has no entry named 'x'"),
        ({"clusters": [{"name": "k", "cluster": {"server": "h"}}]}, "server must be an https URL"),
        ({"clusters": [{"name": "k", "cluster": {"server": "http://h"}}]}, "server must be an https URL"),
        (
            {"clusters": [{"name": "k", "cluster": {"server": "https://h", "certificate-authority-data": "?"}}]},
            "base64",
        ),
        ({"users": [{"name": "u", "user": {"exec": {"command": "x"}}}]}, "exec is not supported"),
    ],
)
def test_an_invalid_kubeconfig_is_rejected_with_the_reason(change: dict[str, object], message: str) -> None:
    good = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://h"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    with pytest.raises(kubeconfig.KubeconfigError, match=message):
        kubeconfig.parse(pyyaml.safe_dump({**good, **change}))
