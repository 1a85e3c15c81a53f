"""The output of kubectl commands that write, and the resulting objects."""

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
    kubectl = both.kubectl
    assert "created" in kubectl("apply", "-f", "-", stdin=MAP % ("applied", 1))
    assert "unchanged" in kubectl("apply", "-f", "-", stdin=MAP % ("applied", 1))
    assert "configured" in kubectl("apply", "-f", "-", stdin=MAP % ("applied", 2))
    kubectl("apply", "view-last-applied", "configmap/applied")
    kubectl("get", "configmap", "applied", "-o", "yaml", "--show-managed-fields")
    kubectl("apply", "-f", "-", "--dry-run=server", "-o", "yaml", stdin=MAP % ("applied", 3))
    assert "+  one:" in kubectl("diff", "-f", "-", stdin=MAP % ("applied", 4))
    kubectl("diff", "--server-side", "--force-conflicts", "-f", "-", stdin=MAP % ("applied", 4))
    kubectl("diff", "-f", "-", stdin=MAP % ("never-there", 4))
    kubectl("apply", "set-last-applied", "-f", "-", stdin=MAP % ("applied", 9))
    kubectl("apply", "-f", "-", stdin="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: UPPER}\n")
    kubectl("apply", "-f", "-", stdin="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndatum: {a: b}\n")
    kubectl(
        "apply",
        "--validate=ignore",
        "-f",
        "-",
        stdin="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndatum: {}\n",
    )
    kubectl(
        "apply",
        "--validate=warn",
        "-f",
        "-",
        stdin="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndatums: {}\n",
    )
    kubectl("apply", "-f", "-", stdin="apiVersion: nobody/v1\nkind: Nothing\nmetadata: {name: x}\n")


def test_apply_prunes_objects_that_are_no_longer_applied(both: SideBySide) -> None:
    kubectl = both.kubectl
    labelled = MAP.replace("{name: %s}", "{name: %s, labels: {set: pruned}}")
    prune = ("apply", "--prune", "-l", "set=pruned", "--prune-allowlist=core/v1/ConfigMap", "-f", "-")
    kubectl(*prune, stdin=labelled % ("first", 1) + "---" + labelled % ("second", 1))
    assert "configmap/first pruned" in kubectl(*prune, stdin=labelled % ("second", 1))


def test_server_side_apply(both: SideBySide) -> None:
    kubectl = both.kubectl
    one = ("apply", "--server-side", "-f", "-")
    assert "serverside-applied" in kubectl(*one, stdin=MAP % ("owned", 1))
    other = (*one, "--field-manager=other")
    assert "conflict" in kubectl(*other, stdin=MAP % ("owned", 2))
    kubectl(*other, "--force-conflicts", stdin=MAP % ("owned", 2))
    kubectl("get", "configmap", "owned", "-o", "yaml", "--show-managed-fields")
    kubectl(*one, stdin="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: owned}\ndata: {one: [2]}\n")
    fence = "apiVersion: pasture.example.com/v1\nkind: Fence\nmetadata: {name: east}\nspec: {posts: %s, gates: [%s]}\n"
    kubectl(*one, stdin=fence % (3, "{name: a}"))
    kubectl(*other, stdin=fence % (4, "{name: b, width: 1}"))
    kubectl(*other, stdin=fence % (3, "{name: b, width: 1}"))
    kubectl("get", "fence", "east", "-o", "yaml", "--show-managed-fields")
    assert "exit 1" in kubectl(*one, stdin=fence % (-1, "{name: a}"))
    kubectl(*one, stdin=fence % ("many", "{name: a}"))
    kubectl(*one, stdin=fence % (3, "{width: 3}"))
    kubectl(*one, stdin=fence % (3, "{name: a}, {name: a}"))


def test_create_subcommands(both: SideBySide, tmp_path: Path) -> None:
    kubectl = both.kubectl
    (tmp_path / "file.txt").write_text("content\n")
    kubectl("create", "configmap", "made", "--from-literal=a=b", f"--from-file={tmp_path / 'file.txt'}")
    kubectl("create", "secret", "generic", "made", "--from-literal=a=b", "-o", "yaml")
    kubectl("create", "secret", "docker-registry", "registry", "--docker-username=u", "--docker-password=p")
    kubectl("create", "serviceaccount", "made")
    kubectl("create", "token", "made", "--duration=10m")
    kubectl("create", "token", "made", "--duration=1s")
    kubectl("create", "token", "nobody")
    kubectl("create", "role", "made", "--verb=get,list", "--resource=pods,deployments.apps")
    kubectl("create", "rolebinding", "made", "--role=made", "--serviceaccount=default:made", "--user=jim")
    kubectl("create", "deployment", "made", "--image=thing:1", "--replicas=2", "--port=80", "-o", "yaml")
    kubectl("create", "job", "made", "--image=thing:1", "-o", "yaml", "--", "date")
    kubectl("create", "cronjob", "made", "--image=thing:1", "--schedule=* * * * *")
    kubectl("create", "job", "made-now", "--from=cronjob/made")
    kubectl("create", "quota", "made", "--hard=pods=3,cpu=2")
    kubectl("create", "poddisruptionbudget", "made", "--selector=a=b", "--min-available=1")
    kubectl("create", "service", "clusterip", "made", "--tcp=80:8080")
    kubectl("create", "service", "nodeport", "made-node", "--tcp=80")
    kubectl("create", "ingress", "made", "--rule=example.com/*=made:80")
    kubectl("create", "configmap", "made")
    kubectl("create", "namespace", "kube-system")
    kubectl("create", "namespace", "Bad_Name")
    kubectl("create", "clusterrole", "view", "--verb=get", "--resource=pods")
    kubectl("create", "-f", "-", stdin="apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: {containers: []}\n")
    kubectl(
        "create", "-f", "-", stdin="apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: bad}\nspec: {schedule: x}\n"
    )
    kubectl("expose", "deployment", "made", "--port=80", "--name=exposed")
    kubectl("run", "runner", "--image=thing:1", "--restart=Never")
    kubectl("get", "pod", "runner", "-o", "yaml")
    kubectl("get", "roles,rolebindings,cronjobs,ingresses,pdb,secrets,deployments")


def test_patch_of_each_type(both: SideBySide) -> None:
    kubectl = both.kubectl
    kubectl(
        "patch",
        "deployment",
        "flock",
        "-p",
        '{"spec":{"template":{"spec":{"containers":[{"name":"extra","image":"x"}]}}}}',
    )
    kubectl("patch", "deployment", "flock", "--type=merge", "-p", '{"metadata":{"labels":{"more":"yes"}}}')
    kubectl("patch", "deployment", "flock", "--type=json", "-p", '[{"op":"replace","path":"/spec/replicas","value":4}]')
    kubectl("patch", "deployment", "flock", "--type=json", "-p", '[{"op":"remove","path":"/spec/nothing"}]')
    kubectl("patch", "deployment", "flock", "--type=json", "-p", '[{"op":"test","path":"/spec/replicas","value":9}]')
    kubectl("patch", "deployment", "flock", "-p", '{"spec":{"selector":{"matchLabels":{"z":"b"}}}}')
    kubectl("patch", "deployment", "flock", "-p", "{")
    kubectl("patch", "deployment", "flock", "-p", '{"spec":{"replicas":"x"}}')
    kubectl("patch", "fence", "north", "-p", '{"spec":{"posts":1}}')
    kubectl("patch", "fence", "north", "--type=merge", "-p", '{"spec":{"posts":13}}')
    kubectl("patch", "fence", "north", "--type=merge", "-p", '{"spec":{"wood":"iron"}}')
    kubectl("patch", "fence", "north", "--type=merge", "--subresource=status", "-p", '{"status":{"posts":5}}')
    kubectl("patch", "pod", "sheep", "-p", '{"spec":{"containers":[{"name":"main","image":"sheep:2"}]}}')
    kubectl("patch", "pod", "sheep", "-p", '{"spec":{"nodeName":"x","hostNetwork":true}}')
    kubectl("patch", "job", "shear", "-p", '{"spec":{"completions":3}}')
    kubectl("patch", "service", "barn", "-p", '{"spec":{"clusterIP":"10.100.0.77"}}')
    kubectl("patch", "secret", "password", "-p", '{"type":"other"}')
    kubectl("patch", "nothing", "x", "-p", "{}")
    kubectl("get", "deployment", "flock", "-o", "yaml", "--show-managed-fields")
    kubectl("get", "fence", "north", "-o", "yaml", "--show-managed-fields")


def test_label_annotate_scale_set(both: SideBySide) -> None:
    kubectl = both.kubectl
    kubectl("label", "configmap", "words", "colour=green")
    kubectl("label", "configmap", "words", "colour=blue")
    kubectl("label", "configmap", "words", "colour=blue", "--overwrite")
    kubectl("label", "configmap", "words", "colour-", "absent-")
    kubectl("label", "configmap", "words", "bad/key/=x")
    kubectl("label", "configmap", "words", f"long={'x' * 64}")
    kubectl("annotate", "configmaps", "--all", "seen=yes")
    kubectl("annotate", "configmap", "words", "seen-")
    kubectl("scale", "deployment", "flock", "--replicas=5")
    kubectl("scale", "deployment", "flock", "--replicas=6", "--current-replicas=1")
    kubectl("scale", "fence", "north", "--replicas=7")
    kubectl("scale", "statefulset", "herd", "--replicas=0")
    kubectl("scale", "configmap", "words", "--replicas=1")
    kubectl("set", "image", "deployment/flock", "main=sheep:3")
    kubectl("set", "env", "deployment/flock", "A=B")
    kubectl("set", "resources", "deployment/flock", "--limits=cpu=200m")
    kubectl("set", "serviceaccount", "deployment/flock", "shepherd")
    kubectl("set", "subject", "rolebinding", "counters", "--user=joe")
    kubectl("autoscale", "deployment", "flock", "--max=3")
    kubectl("rollout", "pause", "deployment/flock")
    kubectl("rollout", "resume", "deployment/flock")
    kubectl("get", "deployment", "flock", "-o", "yaml")


@pytest.fixture
def editor(both: SideBySide, tmp_path: Path) -> Iterator[Path]:
    """An editor: a script whose one line a test writes."""
    path = tmp_path / "editor"
    both.environment = {"EDITOR": str(path), "PATH": os.environ["PATH"]}
    yield path
    both.environment = {}


def test_edit_and_replace(both: SideBySide, editor: Path) -> None:
    kubectl = both.kubectl
    kubectl("apply", "-f", "-", stdin=MAP % ("edited", 1))

    def set_edit(script: str) -> None:
        editor.write_text(f"#!/bin/sh\nsed -i '{script}' \"$1\"\n")
        editor.chmod(0o755)

    set_edit('s/one: "1"/one: "2"/')
    assert "configmap/edited edited" in kubectl("edit", "configmap", "edited")
    assert kubectl("get", "configmap", "edited", "-o", "jsonpath={.data.one}") == "2"
    set_edit("s/nothing/nothing/")
    assert "no changes made" in kubectl("edit", "configmap", "edited")
    set_edit("s/posts: .*/posts: 8/")
    assert "edited" in kubectl("edit", "fence", "north")
    kubectl("replace", "-f", "-", stdin=MAP % ("edited", 5))
    kubectl("replace", "-f", "-", stdin=MAP % ("not-there", 5))
    kubectl("replace", "--force", "-f", "-", stdin=MAP % ("edited", 6))
    stale = (MAP % ("edited", 7)).replace("{name: edited}", '{name: edited, resourceVersion: "1"}')
    assert "the object has been modified" in kubectl("replace", "-f", "-", stdin=stale)


def test_wait(both: SideBySide) -> None:
    kubectl = both.kubectl
    kubectl("wait", "--for=condition=Established", "crd/fences.pasture.example.com", "--timeout=5s")
    kubectl("wait", "--for=jsonpath={.data.greeting}=hello", "configmap/words", "--timeout=5s")
    kubectl("wait", "--for=condition=Ready", "pod/sheep", "--timeout=100ms")
    kubectl("wait", "--for=delete", "pod/not-there", "--timeout=5s")
    kubectl("wait", "--for=create", "configmap/words", "--timeout=5s")
    kubectl("wait", "--for=condition=Ready", "pod/not-there", "--timeout=1s")


def test_delete(both: SideBySide) -> None:
    kubectl = both.kubectl
    kubectl("create", "configmap", "short-lived")
    assert "deleted" in kubectl("delete", "configmap", "short-lived")
    kubectl("delete", "configmap", "short-lived")
    kubectl("delete", "configmap", "short-lived", "--ignore-not-found")
    kubectl("create", "configmap", "labelled-1")
    kubectl("label", "configmap", "labelled-1", "batch=one")
    kubectl("delete", "configmaps", "-l", "batch=one")
    kubectl("delete", "pod", "sheep", "--dry-run=server")
    kubectl("run", "brief", "--image=x")
    kubectl("delete", "pod", "brief", "--grace-period=0", "--force")
    for mode in ("background", "foreground", "orphan"):
        kubectl("create", "deployment", mode, "--image=x")
        kubectl("delete", "deployment", mode, f"--cascade={mode}")
    kubectl("delete", "services", "--all", "--dry-run=client")
    kubectl("create", "namespace", f"{both.namespace}-2")
    kubectl("delete", "namespace", f"{both.namespace}-2")
    kubectl("get", "namespace", f"{both.namespace}-2")
    kubectl("delete", "namespace", "kube-system")


def test_authorization(both: SideBySide) -> None:
    kubectl = both.kubectl
    rules = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reconciled, namespace: %s}
rules: [{apiGroups: [""], resources: [pods], verbs: [%s]}]
"""
    kubectl("auth", "reconcile", "-f", "-", stdin=rules % (both.namespace, "get"))
    kubectl("auth", "reconcile", "-f", "-", stdin=rules % (both.namespace, "get, list"))
    kubectl("get", "role", "reconciled", "-o", "yaml")
    kubectl("create", "rolebinding", "grant", "--role=reconciled", "--user=jane", "--as=jane")
    kubectl("create", "rolebinding", "editors", "--clusterrole=edit", "--user=ed")
    kubectl("auth", "can-i", "create", "roles", "--as=ed")
    kubectl("create", "role", "more", "--verb=get", "--resource=secrets", "--as=ed")
    kubectl("create", "configmap", "eds", "--as=ed")
    kubectl("delete", "fence", "north", "--as=ed")
    kubectl("create", "rolebinding", "roles", "--clusterrole=admin", "--user=al")
    kubectl("create", "role", "beyond", "--verb=*", "--resource=nodes", "--as=al")
    kubectl("patch", "rolebinding", "roles", "-p", '{"roleRef":{"name":"edit"}}')


def test_more_commands(both: SideBySide) -> None:
    kubectl = both.kubectl
    kubectl("label", "configmap", "words", "--list")
    kubectl("rollout", "restart", "deployment/flock")
    kubectl("rollout", "undo", "deployment/flock")
    kubectl("patch", "configmap", "words", "--dry-run=server", "-p", '{"data":{"new":"x"}}', "-o", "yaml")
    kubectl("create", "clusterrolebinding", f"c-{both.namespace}", "--clusterrole=view", "--user=vi")
    kubectl("auth", "can-i", "list", "pods", "--as=vi", "-A")
    kubectl("auth", "can-i", "get", "secrets", "--as=vi")
    kubectl("delete", "clusterrolebinding", f"c-{both.namespace}")
    kubectl("create", "priorityclass", f"p-{both.namespace}", "--value=5", "--description=x")
    kubectl("describe", "priorityclass", f"p-{both.namespace}")
    kubectl("delete", "priorityclass", f"p-{both.namespace}")
    kubectl("get", "configmap", "words", "--output-watch-events")
    kubectl("get", "configmaps,secrets", "words", "password")
    kubectl("get", "-f", "-", stdin=MAP % ("words", 1))
    kubectl("describe", "-f", "-", stdin=MAP % ("words", 1))
    kubectl("delete", "-f", "-", stdin=MAP % ("not-there", 1))
    kubectl("expose", "pod", "sheep", "--port=80", "--name=of-sheep")
    kubectl("set", "selector", "service", "of-sheep", "app=other")
    kubectl("describe", "service", "of-sheep")
    kubectl("create", "-f", "-", stdin=MAP % ("words", 1))
    kubectl(
        "create", "--validate=strict", "-f", "-", stdin="{apiVersion: v1, kind: ConfigMap, metadata: {name: y}, x: 1}"
    )
    kubectl(
        "apply", "-f", "-", stdin="{apiVersion: apps/v1, kind: Deployment, metadata: {name: y}, spec: {replicas: 1}}"
    )
    kubectl(
        "apply", "-f", "-", stdin="{apiVersion: v1, kind: Service, metadata: {name: y}, spec: {ports: [{port: 99999}]}}"
    )
    kubectl("apply", "-f", "-", stdin="{apiVersion: v1, kind: Secret, metadata: {name: y}, type: kubernetes.io/tls}")
    kubectl("port-forward", "pod/sheep", "8080:80")
    kubectl("attach", "sheep")
    kubectl("debug", "sheep", "--image=busybox")
    kubectl("cp", "sheep:/etc/passwd", "/dev/null")


def test_nodes(both: SideBySide) -> None:
    kubectl = both.kubectl
    node = f"n-{both.namespace}"
    kubectl("create", "-f", "-", stdin=f"apiVersion: v1\nkind: Node\nmetadata: {{name: {node}}}\n")
    kubectl("taint", "nodes", node, "key=value:NoSchedule")
    kubectl("taint", "nodes", node, "key=value:NoSchedule")
    kubectl("taint", "nodes", node, "key:NoSchedule-")
    kubectl("cordon", node)
    kubectl("get", "node", node)
    kubectl("get", "nodes", node, "-o", "wide")
    kubectl("describe", "node", node)
    kubectl("uncordon", node)
    spec = f"{{nodeName: {node}, containers: [{{name: c, image: i}}]}}"
    kubectl("apply", "-f", "-", stdin=f"{{apiVersion: v1, kind: Pod, metadata: {{name: on-node}}, spec: {spec}}}")
    kubectl("drain", node)
    kubectl("drain", node, "--force", "--dry-run=server")
    kubectl("logs", "on-node")
    kubectl("exec", "on-node", "--", "date")
    kubectl("delete", "pod", "on-node", "--grace-period=0", "--force")
    kubectl("delete", "node", node)
