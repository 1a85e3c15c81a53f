"""Invalid objects and updates; `real_answers.json` contains kube-apiserver's errors."""

# ruff: noqa: E501 — one object a line reads better than one field a line
from __future__ import annotations

import copy
from typing import Any

from tests.unit.engine.apiserver.builtin.samples import ONCE, SAMPLES, WEBHOOK

Sample = dict[str, Any]
_BY_NAME = {(sample["kind"], sample["metadata"]["name"]): sample for sample in SAMPLES}


def _with(sample: Sample, path: str, value: Any) -> Sample:
    """Return a copy of a sample with one field set; `a.0.b` indexes lists, and None removes."""
    changed = copy.deepcopy(sample)
    *parents, last = path.split("/")
    holder: Any = changed
    for part in parents:
        holder = holder[int(part)] if isinstance(holder, list) else holder.setdefault(part, {})
    if value is None:
        holder.pop(last, None)
    else:
        holder[int(last) if isinstance(holder, list) else last] = value
    return changed


def _of(kind: str, name: str) -> Sample:
    return copy.deepcopy(_BY_NAME[kind, name])


def _secret(kind: str, **data: str) -> Sample:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "type": kind, "stringData": data}


def _service(**spec: Any) -> Sample:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": spec}


def _job(**spec: Any) -> Sample:
    template = copy.deepcopy(ONCE)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template, **spec}}


POD = _of("Pod", "pod")
DEPLOYMENT = _of("Deployment", "deployment")
DAEMON_SET = _of("DaemonSet", "daemonset")
STATEFUL_SET = _of("StatefulSet", "statefulset")
CRON = _of("CronJob", "cron")
ROLE = _of("Role", "role")
BINDING = _of("RoleBinding", "binding")
LEASE = _of("Lease", "lease")
VALIDATING = _of("ValidatingWebhookConfiguration", "validating")
INGRESS = _of("Ingress", "ingress")
SLICE = _of("EndpointSlice", "slice")
C0 = "spec/containers/0"

CREATES: dict[str, Sample] = {
    "secret key": _secret("Opaque", **{"a b": "c"}),
    "secret tls": _secret("kubernetes.io/tls", a="b"),
    "secret dockerconfigjson absent": _secret("kubernetes.io/dockerconfigjson"),
    "secret dockerconfigjson invalid": _secret("kubernetes.io/dockerconfigjson", **{".dockerconfigjson": "x"}),
    "secret dockercfg list": _secret("kubernetes.io/dockercfg", **{".dockercfg": "[]"}),
    "secret basic": _secret("kubernetes.io/basic-auth"),
    "secret ssh": _secret("kubernetes.io/ssh-auth"),
    "secret account": _secret("kubernetes.io/service-account-token"),
    "secret too large": _secret("Opaque", a="x" * (1 << 20) + "x"),
    "config key": _with(_of("ConfigMap", "cm"), "data", {"..": "x"}),
    "config key dots": _with(_of("ConfigMap", "cm"), "data", {"..a": "x"}),
    "config duplicate": _with(_of("ConfigMap", "cm"), "data", {"c": "x"}),
    "config too large": _with(_of("ConfigMap", "cm"), "data", {"a": "x" * (1 << 20)}),
    "namespace finalizer": _with(_of("Namespace", "ns"), "spec/finalizers", ["nope"]),
    "service no ports": _service(),
    "service port zero": _service(ports=[{"port": 0}]),
    "service port names": _service(ports=[{"port": 1}, {"port": 2, "name": "A"}]),
    "service port twice": _service(ports=[{"port": 1, "name": "a"}, {"port": 1, "name": "a"}]),
    "service type": _service(type="X", ports=[{"port": 1}]),
    "service protocol": _service(ports=[{"port": 1, "protocol": "X"}]),
    "service affinity": _service(ports=[{"port": 1}], sessionAffinity="X"),
    "service external": _service(type="ExternalName"),
    "service external name": _service(type="ExternalName", externalName="A_b"),
    "service node port of cluster": _service(ports=[{"port": 1, "nodePort": 30001}]),
    "service headless node port": _service(type="NodePort", clusterIP="None", ports=[{"port": 1}]),
    "service selector": _service(ports=[{"port": 1}], selector={"a b": "c"}),
    "service cluster ip": _service(ports=[{"port": 1}], clusterIP="nope"),
    "service target port": _service(ports=[{"port": 1, "targetPort": "TOO--long-port-name"}]),
    "service external traffic": _service(ports=[{"port": 1}], externalTrafficPolicy="Local"),
    "service internal traffic": _service(ports=[{"port": 1}], internalTrafficPolicy="X"),
    "role no verbs": _with(ROLE, "rules/0/verbs", []),
    "role no groups": _with(ROLE, "rules/0/apiGroups", []),
    "role no resources": _with(ROLE, "rules/0/resources", []),
    "role urls": _with(ROLE, "rules/0/nonResourceURLs", ["/x"]),
    "cluster role urls and resources": _with({**ROLE, "kind": "ClusterRole"}, "rules/0/nonResourceURLs", ["/x"]),
    "cluster role aggregation": _with(_of("ClusterRole", "cluster-role"), "aggregationRule", {}),
    "binding kind": _with(BINDING, "roleRef/kind", "X"),
    "binding group": _with(BINDING, "roleRef/apiGroup", "X"),
    "binding name": _with(BINDING, "roleRef/name", ""),
    "binding subject kind": _with(BINDING, "subjects/0/kind", "X"),
    "binding subject name": _with(BINDING, "subjects/1/name", "A_"),
    "binding subject group": _with(BINDING, "subjects/0/apiGroup", "X"),
    "cluster binding namespace": {**_of("ClusterRoleBinding", "crb"), "subjects": [{"kind": "ServiceAccount", "name": "x"}]},
    "cluster binding role": _with(_of("ClusterRoleBinding", "crb"), "roleRef/kind", "Role"),
    "job restart always": _with(_job(), "spec/template/spec/restartPolicy", "Always"),
    "job restart absent": _with(_job(), "spec/template/spec/restartPolicy", None),
    "job negative": _job(parallelism=-1, completions=-1, backoffLimit=-1, activeDeadlineSeconds=-1, ttlSecondsAfterFinished=-1),
    "job mode": _job(completionMode="X"),
    "job backoff per index": _job(backoffLimitPerIndex=1),
    "job selector": _job(selector={"matchLabels": {"a": "b"}}),
    "job manual selector": _job(manualSelector=True, selector={"matchLabels": {"a": "b"}}),
    "job no containers": _job(template={"spec": {"restartPolicy": "Never"}}),
    "job replacement": _job(podReplacementPolicy="X"),
    "cron schedule absent": _with(CRON, "spec/schedule", ""),
    "cron schedule words": _with(CRON, "spec/schedule", "nope"),
    "cron schedule range": _with(CRON, "spec/schedule", "61 * * * *"),
    "cron schedule month": _with(CRON, "spec/schedule", "1 * * foo *"),
    "cron schedule step": _with(CRON, "spec/schedule", "*/0 * * * *"),
    "cron schedule order": _with(CRON, "spec/schedule", "5-1 * * * *"),
    "cron schedule shorthand": _with(CRON, "spec/schedule", "@sometimes"),
    "cron schedule zone": _with(CRON, "spec/schedule", "TZ=UTC * * * * *"),
    "cron zone": _with(CRON, "spec/timeZone", "Nowhere/Land"),
    "cron zone local": _with(CRON, "spec/timeZone", "Local"),
    "cron zone empty": _with(CRON, "spec/timeZone", ""),
    "cron policy": _with(CRON, "spec/concurrencyPolicy", "X"),
    "cron history": _with(CRON, "spec/failedJobsHistoryLimit", -1),
    "cron name": _with(CRON, "metadata/name", "a" * 53),
    "cron restart": _with(CRON, "spec/jobTemplate/spec/template/spec/restartPolicy", "Always"),
    "lease duration": _with(LEASE, "spec/leaseDurationSeconds", 0),
    "lease transitions": _with(LEASE, "spec/leaseTransitions", -1),
    "pod no containers": _with(POD, "spec/containers", []),
    "pod no image": _with(POD, f"{C0}/image", ""),
    "pod no name": _with(POD, f"{C0}/name", ""),
    "pod container name": _with(POD, f"{C0}/name", "A_B"),
    "pod container twice": _with(POD, "spec/containers", [{"name": "a", "image": "x"}, {"name": "a", "image": "x"}]),
    "pod restart": _with(POD, "spec/restartPolicy", "X"),
    "pod dns": _with(POD, "spec/dnsPolicy", "X"),
    "pod pull policy": _with(POD, f"{C0}/imagePullPolicy", "X"),
    "pod termination policy": _with(POD, f"{C0}/terminationMessagePolicy", "X"),
    "pod mount": _with(POD, f"{C0}/volumeMounts", [{"name": "x", "mountPath": "/a"}]),
    "pod mount path": _with(_with(POD, "spec/volumes", [{"name": "x"}]), f"{C0}/volumeMounts", [{"name": "x"}]),
    "pod mount twice": _with(_with(POD, "spec/volumes", [{"name": "x"}]), f"{C0}/volumeMounts", [{"name": "x", "mountPath": "/a"}] * 2),
    "pod volume twice": _with(POD, "spec/volumes", [{"name": "x"}, {"name": "x"}]),
    "pod volume name": _with(POD, "spec/volumes", [{"name": "X"}]),
    "pod volume two sources": _with(POD, "spec/volumes", [{"name": "x", "emptyDir": {}, "hostPath": {"path": "/"}}]),
    "pod volume secret": _with(POD, "spec/volumes", [{"name": "x", "secret": {}}]),
    "pod volume claim": _with(POD, "spec/volumes", [{"name": "x", "persistentVolumeClaim": {"claimName": ""}}]),
    "pod volume mode": _with(POD, "spec/volumes", [{"name": "x", "secret": {"secretName": "a", "defaultMode": 4096}}]),
    "pod volume host path": _with(POD, "spec/volumes", [{"name": "x", "hostPath": {"path": "/a/../b"}}]),
    "pod volume token": _with(POD, "spec/volumes", [{"name": "x", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 5}}]}}]),
    "pod requests": _with(POD, f"{C0}/resources", {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}),
    "pod resource name": _with(POD, f"{C0}/resources", {"limits": {"nope": "1"}}),
    "pod resource negative": _with(POD, f"{C0}/resources", {"limits": {"cpu": "-1"}}),
    "pod resource extended": _with(POD, f"{C0}/resources", {"requests": {"a.example.com/x": "1"}}),
    "pod env name": _with(POD, f"{C0}/env", [{"name": ""}]),
    "pod env name bad": _with(POD, f"{C0}/env", [{"name": "a=b"}]),
    "pod env sources": _with(POD, f"{C0}/env", [{"name": "A", "valueFrom": {}}]),
    "pod env both": _with(POD, f"{C0}/env", [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
    "pod env field": _with(POD, f"{C0}/env", [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.nope"}}}]),
    "pod env field unknown": _with(POD, f"{C0}/env", [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.phase"}}}]),
    "pod env secret": _with(POD, f"{C0}/env", [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": ""}}}]),
    "pod env from": _with(POD, f"{C0}/envFrom", [{}]),
    "pod port": _with(POD, f"{C0}/ports", [{"containerPort": 0}]),
    "pod port range": _with(POD, f"{C0}/ports", [{"containerPort": 70000}]),
    "pod port name": _with(POD, f"{C0}/ports", [{"containerPort": 1, "name": "A"}]),
    "pod port protocol": _with(POD, f"{C0}/ports", [{"containerPort": 1, "protocol": "X"}]),
    "pod host port twice": _with(POD, f"{C0}/ports", [{"containerPort": 1, "hostPort": 5}, {"containerPort": 2, "hostPort": 5}]),
    "pod host network port": _with(_with(POD, "spec/hostNetwork", True), f"{C0}/ports", [{"containerPort": 1, "hostPort": 5}]),
    "pod probe": _with(POD, f"{C0}/livenessProbe", {}),
    "pod probe two": _with(POD, f"{C0}/livenessProbe", {"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}}),
    "pod probe port": _with(POD, f"{C0}/livenessProbe", {"httpGet": {"port": 0}}),
    "pod probe exec": _with(POD, f"{C0}/livenessProbe", {"exec": {}}),
    "pod probe negative": _with(POD, f"{C0}/livenessProbe", {"exec": {"command": ["a"]}, "periodSeconds": -1}),
    "pod probe success": _with(POD, f"{C0}/livenessProbe", {"exec": {"command": ["a"]}, "successThreshold": 2}),
    "pod init probe": _with(POD, "spec/initContainers", [{"name": "i", "image": "x", "livenessProbe": {"exec": {"command": ["a"]}}}]),
    "pod init name": _with(POD, "spec/initContainers", [{"name": "c", "image": "x"}]),
    "pod deadline": _with(POD, "spec/activeDeadlineSeconds", 0),
    "pod hostname": _with(POD, "spec/hostname", "A.b"),
    "pod node selector": _with(POD, "spec/nodeSelector", {"a b": "c d"}),
    "pod toleration": _with(POD, "spec/tolerations", [{"key": "a", "operator": "X"}]),
    "pod toleration empty": _with(POD, "spec/tolerations", [{"operator": "Equal"}]),
    "pod toleration seconds": _with(POD, "spec/tolerations", [{"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 1}]),
    "pod toleration effect": _with(POD, "spec/tolerations", [{"key": "a", "operator": "Exists", "effect": "X"}]),
    "pod spread": _with(POD, "spec/topologySpreadConstraints", [{"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "X"}]),
    "pod alias": _with(POD, "spec/hostAliases", [{"ip": "x", "hostnames": ["A_"]}]),
    "pod run as": _with(POD, f"{C0}/securityContext", {"runAsUser": -1}),
    "deployment empty": {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}},
    "deployment selector": _with(DEPLOYMENT, "spec/selector/matchLabels", {"b": "c"}),
    "deployment selector empty": _with(DEPLOYMENT, "spec/selector", {}),
    "deployment selector bad": _with(DEPLOYMENT, "spec/selector", {"matchExpressions": [{"key": "app", "operator": "X"}]}),
    "deployment selector values": _with(DEPLOYMENT, "spec/selector", {"matchExpressions": [{"key": "app", "operator": "In"}]}),
    "deployment replicas": _with(DEPLOYMENT, "spec/replicas", -1),
    "deployment strategy": _with(DEPLOYMENT, "spec/strategy/type", "X"),
    "deployment recreate": _with(DEPLOYMENT, "spec/strategy", {"type": "Recreate", "rollingUpdate": {}}),
    "deployment zero": _with(DEPLOYMENT, "spec/strategy/rollingUpdate", {"maxSurge": 0, "maxUnavailable": 0}),
    "deployment percent": _with(DEPLOYMENT, "spec/strategy/rollingUpdate", {"maxSurge": "x", "maxUnavailable": "101%"}),
    "deployment deadline": _with(DEPLOYMENT, "spec/progressDeadlineSeconds", 0),
    "deployment restart": _with(DEPLOYMENT, "spec/template/spec/restartPolicy", "Never"),
    "deployment active deadline": _with(DEPLOYMENT, "spec/template/spec/activeDeadlineSeconds", 5),
    "deployment label": _with(DEPLOYMENT, "spec/template/metadata/labels", {"app": "a", "b": "c d"}),
    "replicaset selector": _with(_of("ReplicaSet", "replicaset"), "spec/selector", None),
    "daemonset selector": _with(DAEMON_SET, "spec/selector", {}),
    "daemonset strategy": _with(DAEMON_SET, "spec/updateStrategy/type", "X"),
    "daemonset both": _with(DAEMON_SET, "spec/updateStrategy/rollingUpdate", {"maxSurge": 1, "maxUnavailable": 1}),
    "statefulset policy": _with(STATEFUL_SET, "spec/podManagementPolicy", "X"),
    "statefulset strategy": _with(STATEFUL_SET, "spec/updateStrategy/type", "X"),
    "statefulset selector": _with(STATEFUL_SET, "spec/selector/matchLabels", {"b": "c"}),
    "statefulset retention": _with(STATEFUL_SET, "spec/persistentVolumeClaimRetentionPolicy", {"whenScaled": "X"}),
    "rc empty": {"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "r"}},
    "revision": _with(_of("ControllerRevision", "revision"), "data", "x"),
    "webhook name": _with(VALIDATING, "webhooks/0/name", "a"),
    "webhook name twice": _with(VALIDATING, "webhooks", [WEBHOOK, WEBHOOK]),
    "webhook config": _with(VALIDATING, "webhooks/0/clientConfig", {}),
    "webhook url": _with(VALIDATING, "webhooks/0/clientConfig", {"url": "http://u@h?x#y"}),
    "webhook effects": _with(VALIDATING, "webhooks/0/sideEffects", None),
    "webhook effects some": _with(VALIDATING, "webhooks/0/sideEffects", "Some"),
    "webhook versions": _with(VALIDATING, "webhooks/0/admissionReviewVersions", []),
    "webhook versions unknown": _with(VALIDATING, "webhooks/0/admissionReviewVersions", ["v9"]),
    "webhook timeout": _with(VALIDATING, "webhooks/0/timeoutSeconds", 31),
    "webhook policy": _with(VALIDATING, "webhooks/0/failurePolicy", "X"),
    "webhook operations": _with(VALIDATING, "webhooks/0/rules/0/operations", ["*", "X"]),
    "webhook groups": _with(VALIDATING, "webhooks/0/rules/0/apiGroups", []),
    "webhook resources": _with(VALIDATING, "webhooks/0/rules/0/resources", ["*/*", "pods"]),
    "webhook scope": _with(VALIDATING, "webhooks/0/rules/0/scope", "X"),
    "webhook service": _with(VALIDATING, "webhooks/0/clientConfig/service", {"name": "", "namespace": "", "port": 0, "path": "x"}),
    "webhook reinvocation": _with(_of("MutatingWebhookConfiguration", "mutating"), "webhooks/0/reinvocationPolicy", "X"),
    "pdb both": _with(_of("PodDisruptionBudget", "pdb"), "spec/maxUnavailable", 1),
    "pdb percent": _with(_of("PodDisruptionBudget", "pdb"), "spec/minAvailable", "200%"),
    "pdb negative": _with(_of("PodDisruptionBudget", "pdb"), "spec/minAvailable", -1),
    "priority value": _with(_of("PriorityClass", "priority"), "value", 2000000000),
    "priority policy": _with(_of("PriorityClass", "priority"), "preemptionPolicy", "X"),
    "storage provisioner": _with(_of("StorageClass", "storage"), "provisioner", ""),
    "storage policy": _with(_of("StorageClass", "storage"), "reclaimPolicy", "X"),
    "storage mode": _with(_of("StorageClass", "storage"), "volumeBindingMode", "X"),
    "ingress empty": _with(INGRESS, "spec", {}),
    "ingress host": _with(INGRESS, "spec/rules/0/host", "10.0.0.1"),
    "ingress wildcard": _with(INGRESS, "spec/rules/0/host", "a.*.b"),
    "ingress path type": _with(INGRESS, "spec/rules/0/http/paths/0/pathType", None),
    "ingress path type unknown": _with(INGRESS, "spec/rules/0/http/paths/0/pathType", "X"),
    "ingress path": _with(INGRESS, "spec/rules/0/http/paths/0/path", "x"),
    "ingress backend": _with(INGRESS, "spec/rules/0/http/paths/0/backend", {}),
    "ingress port": _with(INGRESS, "spec/rules/0/http/paths/0/backend/service/port", {}),
    "policy port": _with(_of("NetworkPolicy", "policy"), "spec/egress/0/ports/0/port", 0),
    "policy peer": _with(_of("NetworkPolicy", "policy"), "spec/egress/0/to", [{}]),
    "policy block": _with(_of("NetworkPolicy", "policy"), "spec/egress/0/to", [{"ipBlock": {"cidr": "x"}}]),
    "policy types": _with(_of("NetworkPolicy", "policy"), "spec/policyTypes", ["X"]),
    "slice type": _with(SLICE, "addressType", "X"),
    "slice address": _with(SLICE, "endpoints/0/addresses", ["x"]),
    "slice no address": _with(SLICE, "endpoints/0/addresses", []),
    "slice family": _with(SLICE, "endpoints/0/addresses", ["::5"]),
    "endpoints address": _with(_of("Endpoints", "endpoints"), "subsets/0/addresses/0/ip", "x"),
    "endpoints empty": _with(_of("Endpoints", "endpoints"), "subsets/0/addresses", []),
    "claim modes": _with(_of("PersistentVolumeClaim", "claim"), "spec/accessModes", []),
    "claim mode": _with(_of("PersistentVolumeClaim", "claim"), "spec/accessModes", ["X"]),
    "claim storage": _with(_of("PersistentVolumeClaim", "claim"), "spec/resources", {}),
    "volume capacity": _with(_of("PersistentVolume", "volume"), "spec/capacity", {}),
    "volume policy": _with(_of("PersistentVolume", "volume"), "spec/persistentVolumeReclaimPolicy", "X"),
    "hpa": _with(_of("HorizontalPodAutoscaler", "hpa"), "spec/maxReplicas", 0),
    "hpa target": _with(_of("HorizontalPodAutoscaler", "hpa"), "spec/scaleTargetRef", {"kind": "", "name": ""}),
    "node taint": _with(_of("Node", "node"), "spec/taints", [{"key": "a", "effect": "X"}]),
    "api service name": _with(_of("APIService", "v1.a.example.com"), "metadata/name", "x"),
    "api service priority": _with(_of("APIService", "v1.a.example.com"), "spec/versionPriority", 0),
    "event namespace": _with(_of("Event", "event"), "involvedObject/namespace", "other"),
    "vap constraints": _with(_of("ValidatingAdmissionPolicy", "vap"), "spec/matchConstraints", None),
    "vapb actions": _with(_of("ValidatingAdmissionPolicyBinding", "vapb"), "spec/validationActions", ["Deny", "Warn"]),
    "quota": _with(_of("ResourceQuota", "quota"), "spec/hard", {"cpu": "-1"}),
    "name subdomain": _with(_of("ConfigMap", "cm"), "metadata/name", "A_b"),
    "name service": _with(_service(ports=[{"port": 1}]), "metadata/name", "a.b"),
    "name namespace": _with(_of("Namespace", "ns"), "metadata/name", "a.b"),
}  # fmt: skip

# Old and new object: only the update is invalid.
UPDATES: dict[str, tuple[Sample, Sample]] = {
    "secret type": (_secret("Opaque"), _secret("example.com/x")),
    "secret immutable": (_with(_secret("Opaque", a="b"), "immutable", True), _secret("Opaque", a="c")),
    "config immutable": (_with(_of("ConfigMap", "cm"), "immutable", True), _with(_with(_of("ConfigMap", "cm"), "immutable", True), "data", {"x": "y"})),
    "service cluster ip": (_service(ports=[{"port": 1}], clusterIP="10.96.0.77"), _service(ports=[{"port": 1}], clusterIP="10.96.0.78")),
    "binding role": (BINDING, _with(BINDING, "roleRef/name", "edit")),
    "job template": (_job(), _with(_job(), "spec/template/spec/containers/0/image", "other")),
    "job completions": (_job(completions=2), _job(completions=3)),
    "deployment selector": (DEPLOYMENT, _with(_with(DEPLOYMENT, "spec/selector/matchLabels", {"b": "c"}), "spec/template/metadata/labels", {"b": "c"})),
    "statefulset service": (STATEFUL_SET, _with(STATEFUL_SET, "spec/serviceName", "other")),
    "daemonset selector": (DAEMON_SET, _with(_with(DAEMON_SET, "spec/selector/matchLabels", {"b": "c"}), "spec/template/metadata/labels", {"b": "c"})),
    "pod deadline": (_with(POD, "spec/activeDeadlineSeconds", 5), _with(POD, "spec/activeDeadlineSeconds", 6)),
    "pod containers": (POD, _with(POD, "spec/containers", [{"name": "c", "image": "x"}, {"name": "d", "image": "x"}])),
    "priority value": (_of("PriorityClass", "priority"), _with(_of("PriorityClass", "priority"), "value", 11)),
    "storage provisioner": (_of("StorageClass", "storage"), _with(_of("StorageClass", "storage"), "provisioner", "other")),
    "revision data": (_of("ControllerRevision", "revision"), _with(_of("ControllerRevision", "revision"), "data", {"x": 1})),
    "slice type": (SLICE, _with(_with(SLICE, "addressType", "IPv6"), "endpoints/0/addresses", ["fd00::1"])),
    "class controller": (_of("IngressClass", "class"), _with(_of("IngressClass", "class"), "spec/controller", "c/d")),
}  # fmt: skip
