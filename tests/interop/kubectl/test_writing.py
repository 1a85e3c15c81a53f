"""What kubectl says while it changes things, and what is there afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.kubectl.side_by_side import SideBySide

MAP = """
apiVersion: v1
kind: ConfigMap
metadata: {name: %s}
data: {one: "%s"}
"""


def test_client_side_apply(both: SideBySide) -> None:
    said = both.kubectl
    assert "created" in said("apply", "-f", "-", stdin=MAP % ("applied", 1))
    assert "unchanged" in said("apply", "-f", "-", stdin=MAP % ("applied", 1))
    assert "configured" in said("apply", "-f", "-", stdin=MAP % ("applied", 2))
    said("apply", "view-last-applied", "configmap/applied")
    said("get", "configmap", "applied", "-o", "yaml", "--show-managed-fields")
    said("apply", "-f", "-", "--dry-run=server", "-o", "yaml", stdin=MAP % ("applied", 3))
    assert "+  one:" in said("diff", "-f", "-", stdin=MAP % ("applied", 4))
    said("diff", "--server-side", "--force-conflicts", "-f", "-", stdin=MAP % ("applied", 4))
    said("diff", "-f", "-", stdin=MAP % ("never-there", 4))
    said("apply", "set-last-applied", "-f", "-", stdin=MAP % ("applied", 9))
    said("apply", "-f", "-", stdin="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: UPPER}\n")
    said("apply", "-f", "-", stdin="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndatum: {a: b}\n")
    said(
        "apply",
        "--validate=ignore",
        "-f",
        "-",
        stdin="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndatum: {}\n",
    )
    said(
        "apply",
        "--validate=warn",
        "-f",
        "-",
        stdin="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndatums: {}\n",
    )
    said("apply", "-f", "-", stdin="apiVersion: nobody/v1\nkind: Nothing\nmetadata: {name: x}\n")


def test_apply_prunes_what_is_no_longer_said(both: SideBySide) -> None:
    said = both.kubectl
    labelled = MAP.replace("{name: %s}", "{name: %s, labels: {set: pruned}}")
    prune = ("apply", "--prune", "-l", "set=pruned", "--prune-allowlist=core/v1/ConfigMap", "-f", "-")
    said(*prune, stdin=labelled % ("first", 1) + "---" + labelled % ("second", 1))
    assert "configmap/first pruned" in said(*prune, stdin=labelled % ("second", 1))


def test_server_side_apply(both: SideBySide) -> None:
    said = both.kubectl
    one = ("apply", "--server-side", "-f", "-")
    assert "serverside-applied" in said(*one, stdin=MAP % ("owned", 1))
    other = (*one, "--field-manager=other")
    assert "conflict" in said(*other, stdin=MAP % ("owned", 2))
    said(*other, "--force-conflicts", stdin=MAP % ("owned", 2))
    said("get", "configmap", "owned", "-o", "yaml", "--show-managed-fields")
    said(*one, stdin="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: owned}\ndata: {one: [2]}\n")
    fence = "apiVersion: pasture.example.com/v1\nkind: Fence\nmetadata: {name: east}\nspec: {posts: %s, gates: [%s]}\n"
    said(*one, stdin=fence % (3, "{name: a}"))
    said(*other, stdin=fence % (4, "{name: b, width: 1}"))
    said(*other, stdin=fence % (3, "{name: b, width: 1}"))
    said("get", "fence", "east", "-o", "yaml", "--show-managed-fields")
    assert "exit 1" in said(*one, stdin=fence % (-1, "{name: a}"))
    said(*one, stdin=fence % ("many", "{name: a}"))
    said(*one, stdin=fence % (3, "{width: 3}"))
    said(*one, stdin=fence % (3, "{name: a}, {name: a}"))


def test_create_subcommands(both: SideBySide, tmp_path: Path) -> None:
    said = both.kubectl
    (tmp_path / "file.txt").write_text("content\n")
    said("create", "configmap", "made", "--from-literal=a=b", f"--from-file={tmp_path / 'file.txt'}")
    said("create", "secret", "generic", "made", "--from-literal=a=b", "-o", "yaml")
    said("create", "secret", "docker-registry", "registry", "--docker-username=u", "--docker-password=p")
    said("create", "serviceaccount", "made")
    said("create", "token", "made", "--duration=10m")
    said("create", "token", "made", "--duration=1s")
    said("create", "token", "nobody")
    said("create", "role", "made", "--verb=get,list", "--resource=pods,deployments.apps")
    said("create", "rolebinding", "made", "--role=made", "--serviceaccount=default:made", "--user=jim")
    said("create", "deployment", "made", "--image=thing:1", "--replicas=2", "--port=80", "-o", "yaml")
    said("create", "job", "made", "--image=thing:1", "-o", "yaml", "--", "date")
    said("create", "cronjob", "made", "--image=thing:1", "--schedule=* * * * *")
    said("create", "job", "made-now", "--from=cronjob/made")
    said("create", "quota", "made", "--hard=pods=3,cpu=2")
    said("create", "poddisruptionbudget", "made", "--selector=a=b", "--min-available=1")
    said("create", "service", "clusterip", "made", "--tcp=80:8080")
    said("create", "service", "nodeport", "made-node", "--tcp=80")
    said("create", "ingress", "made", "--rule=example.com/*=made:80")
    said("create", "configmap", "made")
    said("create", "namespace", "kube-system")
    said("create", "namespace", "Bad_Name")
    said("create", "clusterrole", "view", "--verb=get", "--resource=pods")
    said("create", "-f", "-", stdin="apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: {containers: []}\n")
    said("create", "-f", "-", stdin="apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: bad}\nspec: {schedule: x}\n")
    said("expose", "deployment", "made", "--port=80", "--name=exposed")
    said("run", "runner", "--image=thing:1", "--restart=Never")
    said("get", "pod", "runner", "-o", "yaml")
    said("get", "roles,rolebindings,cronjobs,ingresses,pdb,secrets,deployments")


def test_patch_of_each_type(both: SideBySide) -> None:
    said = both.kubectl
    said(
        "patch",
        "deployment",
        "flock",
        "-p",
        '{"spec":{"template":{"spec":{"containers":[{"name":"extra","image":"x"}]}}}}',
    )
    said("patch", "deployment", "flock", "--type=merge", "-p", '{"metadata":{"labels":{"more":"yes"}}}')
    said("patch", "deployment", "flock", "--type=json", "-p", '[{"op":"replace","path":"/spec/replicas","value":4}]')
    said("patch", "deployment", "flock", "--type=json", "-p", '[{"op":"remove","path":"/spec/nothing"}]')
    said("patch", "deployment", "flock", "--type=json", "-p", '[{"op":"test","path":"/spec/replicas","value":9}]')
    said("patch", "deployment", "flock", "-p", '{"spec":{"selector":{"matchLabels":{"z":"b"}}}}')
    said("patch", "deployment", "flock", "-p", "{")
    said("patch", "deployment", "flock", "-p", '{"spec":{"replicas":"x"}}')
    said("patch", "fence", "north", "-p", '{"spec":{"posts":1}}')
    said("patch", "fence", "north", "--type=merge", "-p", '{"spec":{"posts":13}}')
    said("patch", "fence", "north", "--type=merge", "-p", '{"spec":{"wood":"iron"}}')
    said("patch", "fence", "north", "--type=merge", "--subresource=status", "-p", '{"status":{"posts":5}}')
    said("patch", "pod", "sheep", "-p", '{"spec":{"containers":[{"name":"main","image":"sheep:2"}]}}')
    said("patch", "pod", "sheep", "-p", '{"spec":{"nodeName":"x","hostNetwork":true}}')
    said("patch", "job", "shear", "-p", '{"spec":{"completions":3}}')
    said("patch", "service", "barn", "-p", '{"spec":{"clusterIP":"10.100.0.77"}}')
    said("patch", "secret", "password", "-p", '{"type":"other"}')
    said("patch", "nothing", "x", "-p", "{}")
    said("get", "deployment", "flock", "-o", "yaml", "--show-managed-fields")
    said("get", "fence", "north", "-o", "yaml", "--show-managed-fields")


def test_label_annotate_scale_set(both: SideBySide) -> None:
    said = both.kubectl
    said("label", "configmap", "words", "colour=green")
    said("label", "configmap", "words", "colour=blue")
    said("label", "configmap", "words", "colour=blue", "--overwrite")
    said("label", "configmap", "words", "colour-", "absent-")
    said("label", "configmap", "words", "bad/key/=x")
    said("label", "configmap", "words", f"long={'x' * 64}")
    said("annotate", "configmaps", "--all", "seen=yes")
    said("annotate", "configmap", "words", "seen-")
    said("scale", "deployment", "flock", "--replicas=5")
    said("scale", "deployment", "flock", "--replicas=6", "--current-replicas=1")
    said("scale", "fence", "north", "--replicas=7")
    said("scale", "statefulset", "herd", "--replicas=0")
    said("scale", "configmap", "words", "--replicas=1")
    said("set", "image", "deployment/flock", "main=sheep:3")
    said("set", "env", "deployment/flock", "A=B")
    said("set", "resources", "deployment/flock", "--limits=cpu=200m")
    said("set", "serviceaccount", "deployment/flock", "shepherd")
    said("set", "subject", "rolebinding", "counters", "--user=joe")
    said("autoscale", "deployment", "flock", "--max=3")
    said("rollout", "pause", "deployment/flock")
    said("rollout", "resume", "deployment/flock")
    said("get", "deployment", "flock", "-o", "yaml")


@pytest.fixture
def editor(both: SideBySide, tmp_path: Path) -> Iterator[Path]:
    """A person at an editor: a script whose one line a test writes."""
    path = tmp_path / "editor"
    both.environment = {"EDITOR": str(path), "PATH": os.environ["PATH"]}
    yield path
    both.environment = {}


def test_edit_and_replace(both: SideBySide, editor: Path) -> None:
    said = both.kubectl
    said("apply", "-f", "-", stdin=MAP % ("edited", 1))

    def edits(script: str) -> None:
        editor.write_text(f"#!/bin/sh\nsed -i '{script}' \"$1\"\n")
        editor.chmod(0o755)

    edits('s/one: "1"/one: "2"/')
    assert "configmap/edited edited" in said("edit", "configmap", "edited")
    assert said("get", "configmap", "edited", "-o", "jsonpath={.data.one}") == "2"
    edits("s/nothing/nothing/")
    assert "no changes made" in said("edit", "configmap", "edited")
    edits("s/posts: .*/posts: 8/")
    assert "edited" in said("edit", "fence", "north")
    said("replace", "-f", "-", stdin=MAP % ("edited", 5))
    said("replace", "-f", "-", stdin=MAP % ("not-there", 5))
    said("replace", "--force", "-f", "-", stdin=MAP % ("edited", 6))
    stale = (MAP % ("edited", 7)).replace("{name: edited}", '{name: edited, resourceVersion: "1"}')
    assert "the object has been modified" in said("replace", "-f", "-", stdin=stale)


def test_wait(both: SideBySide) -> None:
    said = both.kubectl
    said("wait", "--for=condition=Established", "crd/fences.pasture.example.com", "--timeout=5s")
    said("wait", "--for=jsonpath={.data.greeting}=hello", "configmap/words", "--timeout=5s")
    said("wait", "--for=condition=Ready", "pod/sheep", "--timeout=100ms")
    said("wait", "--for=delete", "pod/not-there", "--timeout=5s")
    said("wait", "--for=create", "configmap/words", "--timeout=5s")
    said("wait", "--for=condition=Ready", "pod/not-there", "--timeout=1s")


def test_delete(both: SideBySide) -> None:
    said = both.kubectl
    said("create", "configmap", "short-lived")
    assert "deleted" in said("delete", "configmap", "short-lived")
    said("delete", "configmap", "short-lived")
    said("delete", "configmap", "short-lived", "--ignore-not-found")
    said("create", "configmap", "labelled-1")
    said("label", "configmap", "labelled-1", "batch=one")
    said("delete", "configmaps", "-l", "batch=one")
    said("delete", "pod", "sheep", "--dry-run=server")
    said("run", "brief", "--image=x")
    said("delete", "pod", "brief", "--grace-period=0", "--force")
    for mode in ("background", "foreground", "orphan"):
        said("create", "deployment", mode, "--image=x")
        said("delete", "deployment", mode, f"--cascade={mode}")
    said("delete", "services", "--all", "--dry-run=client")
    said("create", "namespace", f"{both.namespace}-2")
    said("delete", "namespace", f"{both.namespace}-2")
    said("get", "namespace", f"{both.namespace}-2")
    said("delete", "namespace", "kube-system")


def test_authorisation(both: SideBySide) -> None:
    said = both.kubectl
    rules = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reconciled, namespace: %s}
rules: [{apiGroups: [""], resources: [pods], verbs: [%s]}]
"""
    said("auth", "reconcile", "-f", "-", stdin=rules % (both.namespace, "get"))
    said("auth", "reconcile", "-f", "-", stdin=rules % (both.namespace, "get, list"))
    said("get", "role", "reconciled", "-o", "yaml")
    said("create", "rolebinding", "grant", "--role=reconciled", "--user=jane", "--as=jane")
    said("create", "rolebinding", "editors", "--clusterrole=edit", "--user=ed")
    said("auth", "can-i", "create", "roles", "--as=ed")
    said("create", "role", "more", "--verb=get", "--resource=secrets", "--as=ed")
    said("create", "configmap", "eds", "--as=ed")
    said("delete", "fence", "north", "--as=ed")
    said("create", "rolebinding", "roles", "--clusterrole=admin", "--user=al")
    said("create", "role", "beyond", "--verb=*", "--resource=nodes", "--as=al")
    said("patch", "rolebinding", "roles", "-p", '{"roleRef":{"name":"edit"}}')


def test_more_words(both: SideBySide) -> None:
    said = both.kubectl
    said("label", "configmap", "words", "--list")
    said("rollout", "restart", "deployment/flock")
    said("rollout", "undo", "deployment/flock")
    said("patch", "configmap", "words", "--dry-run=server", "-p", '{"data":{"new":"x"}}', "-o", "yaml")
    said("create", "clusterrolebinding", f"c-{both.namespace}", "--clusterrole=view", "--user=vi")
    said("auth", "can-i", "list", "pods", "--as=vi", "-A")
    said("auth", "can-i", "get", "secrets", "--as=vi")
    said("delete", "clusterrolebinding", f"c-{both.namespace}")
    said("create", "priorityclass", f"p-{both.namespace}", "--value=5", "--description=x")
    said("describe", "priorityclass", f"p-{both.namespace}")
    said("delete", "priorityclass", f"p-{both.namespace}")
    said("get", "configmap", "words", "--output-watch-events")
    said("get", "configmaps,secrets", "words", "password")
    said("get", "-f", "-", stdin=MAP % ("words", 1))
    said("describe", "-f", "-", stdin=MAP % ("words", 1))
    said("delete", "-f", "-", stdin=MAP % ("not-there", 1))
    said("expose", "pod", "sheep", "--port=80", "--name=of-sheep")
    said("set", "selector", "service", "of-sheep", "app=other")
    said("describe", "service", "of-sheep")
    said("create", "-f", "-", stdin=MAP % ("words", 1))
    said("create", "--validate=strict", "-f", "-", stdin="{apiVersion: v1, kind: ConfigMap, metadata: {name: y}, x: 1}")
    said("apply", "-f", "-", stdin="{apiVersion: apps/v1, kind: Deployment, metadata: {name: y}, spec: {replicas: 1}}")
    said(
        "apply", "-f", "-", stdin="{apiVersion: v1, kind: Service, metadata: {name: y}, spec: {ports: [{port: 99999}]}}"
    )
    said("apply", "-f", "-", stdin="{apiVersion: v1, kind: Secret, metadata: {name: y}, type: kubernetes.io/tls}")
    said("port-forward", "pod/sheep", "8080:80")
    said("attach", "sheep")
    said("debug", "sheep", "--image=busybox")
    said("cp", "sheep:/etc/passwd", "/dev/null")


def test_nodes(both: SideBySide) -> None:
    said = both.kubectl
    node = f"n-{both.namespace}"
    said("create", "-f", "-", stdin=f"apiVersion: v1\nkind: Node\nmetadata: {{name: {node}}}\n")
    said("taint", "nodes", node, "key=value:NoSchedule")
    said("taint", "nodes", node, "key=value:NoSchedule")
    said("taint", "nodes", node, "key:NoSchedule-")
    said("cordon", node)
    said("get", "node", node)
    said("get", "nodes", node, "-o", "wide")
    said("describe", "node", node)
    said("uncordon", node)
    spec = f"{{nodeName: {node}, containers: [{{name: c, image: i}}]}}"
    said("apply", "-f", "-", stdin=f"{{apiVersion: v1, kind: Pod, metadata: {{name: on-node}}, spec: {spec}}}")
    said("drain", node)
    said("drain", node, "--force", "--dry-run=server")
    said("logs", "on-node")
    said("exec", "on-node", "--", "date")
    said("delete", "pod", "on-node", "--grace-period=0", "--force")
    said("delete", "node", node)
