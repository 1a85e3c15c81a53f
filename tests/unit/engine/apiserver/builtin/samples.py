# ruff: noqa: E501 — one object a line reads better than one field a line
"""Sample objects of every built-in kind, minimal and complete, for defaulting."""

from __future__ import annotations

from typing import Any

Sample = dict[str, Any]


def _sample(api_version: str, kind: str, name: str, **rest: Any) -> Sample:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **rest}


LABELS = {"app": "a"}
MINIMAL = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}}
ONCE = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "nginx:1"}]}}
HTTP = {"httpGet": {"port": "web"}}
RICH_POD = {
    "serviceAccountName": "default",
    "automountServiceAccountToken": False,
    "hostNetwork": True,
    "initContainers": [{"name": "i", "image": "busybox@sha256:" + "0" * 64, "command": ["x"]}],
    "containers": [
        {
            "name": "c",
            "image": "registry:5000/a/b",
            "ports": [{"containerPort": 80, "name": "web"}],
            "env": [
                {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "C", "value": ""},
            ],
            "envFrom": [{"configMapRef": {"name": "m"}}],
            "livenessProbe": HTTP,
            "readinessProbe": {"tcpSocket": {"port": 80}},
            "startupProbe": {"grpc": {"port": 5}},
            "lifecycle": {"preStop": {"httpGet": {"port": 80}}},
            "resources": {"limits": {"cpu": "0.5", "memory": "1024Mi"}, "requests": {"cpu": "100m"}},
            "volumeMounts": [{"name": "a", "mountPath": "/a"}],
        }
    ],
    "volumes": [
        {"name": "a"},
        {"name": "b", "secret": {"secretName": "s"}},
        {"name": "c", "configMap": {"name": "m"}},
        {"name": "d", "hostPath": {"path": "/x"}},
        {"name": "e", "downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "f", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
        {"name": "g", "persistentVolumeClaim": {"claimName": "c"}},
    ],
    "tolerations": [{"operator": "Exists"}],
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}],
}
WEBHOOK = {
    "name": "a.example.com",
    "clientConfig": {"service": {"name": "s", "namespace": "default"}},
    "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
    "sideEffects": "None",
    "admissionReviewVersions": ["v1"],
}
STORAGE = {"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"]}

SAMPLES: list[Sample] = [
    _sample("v1", "ConfigMap", "cm", data={"a": "b"}, binaryData={"c": "YQ=="}),
    _sample("v1", "ConfigMap", "cm-empty"),
    _sample("v1", "Secret", "secret", data={"a": "YQ=="}, stringData={"b": "c"}),
    _sample("v1", "Namespace", "ns"),
    _sample("v1", "ServiceAccount", "account"),
    _sample("v1", "Pod", "pod", spec={**MINIMAL["spec"], "automountServiceAccountToken": False}),
    _sample("v1", "Pod", "pod-rich", spec=RICH_POD),
    _sample("v1", "PodTemplate", "template", template=MINIMAL),
    _sample("v1", "ReplicationController", "rc", spec={"template": MINIMAL}),
    _sample("v1", "Service", "svc-headless", spec={"clusterIP": "None", "ports": [{"port": 80}]}),
    _sample("v1", "Service", "svc-external", spec={"type": "ExternalName", "externalName": "example.com"}),
    _sample(
        "v1", "Endpoints", "endpoints", subsets=[{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}]
    ),
    _sample("v1", "Event", "event", involvedObject={"kind": "Pod", "name": "p", "namespace": "default"}),
    _sample("v1", "Node", "node", status={"capacity": {"cpu": "2"}}),
    _sample("v1", "PersistentVolumeClaim", "claim", spec=STORAGE),
    _sample(
        "v1",
        "PersistentVolume",
        "volume",
        spec={"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}},
    ),
    _sample("v1", "ResourceQuota", "quota", spec={"hard": {"cpu": "1000m", "pods": 5}}),
    _sample("v1", "LimitRange", "limits", spec={"limits": [{"type": "Container", "max": {"cpu": "1"}}]}),
    _sample("apps/v1", "Deployment", "deployment", spec={"selector": {"matchLabels": LABELS}, "template": MINIMAL}),
    _sample(
        "apps/v1",
        "Deployment",
        "deployment-recreate",
        spec={
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": RICH_POD},
            "strategy": {"type": "Recreate"},
            "replicas": 0,
        },
    ),
    _sample("apps/v1", "ReplicaSet", "replicaset", spec={"selector": {"matchLabels": LABELS}, "template": MINIMAL}),
    _sample("apps/v1", "DaemonSet", "daemonset", spec={"selector": {"matchLabels": LABELS}, "template": MINIMAL}),
    _sample(
        "apps/v1",
        "StatefulSet",
        "statefulset",
        spec={
            "selector": {"matchLabels": LABELS},
            "template": MINIMAL,
            "serviceName": "s",
            "volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": STORAGE}],
        },
    ),
    _sample("apps/v1", "ControllerRevision", "revision", revision=1, data={"a": {"b": None}}),
    _sample("batch/v1", "Job", "job", spec={"template": ONCE}),
    _sample("batch/v1", "Job", "job-indexed", spec={"template": {**ONCE, "metadata": {"labels": LABELS}}, "completionMode": "Indexed", "completions": 3, "backoffLimitPerIndex": 1}),
    _sample("batch/v1", "CronJob", "cron", spec={"schedule": "@daily", "jobTemplate": {"spec": {"template": ONCE}}}),
    _sample("rbac.authorization.k8s.io/v1", "Role", "role", rules=[{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]),
    _sample(
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        "binding",
        roleRef={"kind": "ClusterRole", "name": "view"},
        subjects=[{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s", "namespace": "default"}],
    ),
    _sample("rbac.authorization.k8s.io/v1", "ClusterRole", "cluster-role"),
    _sample("rbac.authorization.k8s.io/v1", "ClusterRole", "cluster-role-aggregated", aggregationRule={"clusterRoleSelectors": [{}]}),
    _sample("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "crb", roleRef={"kind": "ClusterRole", "name": "view"}),
    _sample("coordination.k8s.io/v1", "Lease", "lease", spec={"holderIdentity": "", "renewTime": "2020-01-01T02:00:00.500000+02:00"}),
    _sample("policy/v1", "PodDisruptionBudget", "pdb", spec={"minAvailable": 1, "selector": {"matchLabels": LABELS}}),
    _sample("networking.k8s.io/v1", "NetworkPolicy", "policy", spec={"podSelector": {}, "egress": [{"ports": [{"port": 53}]}]}),
    _sample(
        "networking.k8s.io/v1",
        "Ingress",
        "ingress",
        spec={"rules": [{"host": "a.example.com", "http": {"paths": [{"pathType": "Prefix", "path": "/", "backend": {"service": {"name": "s", "port": {"number": 80}}}}]}}]},
    ),
    _sample("networking.k8s.io/v1", "IngressClass", "class", spec={"controller": "a/b", "parameters": {"kind": "K", "name": "n"}}),
    _sample(
        "discovery.k8s.io/v1",
        "EndpointSlice",
        "slice",
        addressType="IPv4",
        endpoints=[{"addresses": ["10.0.0.1"]}],
        ports=[{"port": 80}],
    ),
    _sample("storage.k8s.io/v1", "StorageClass", "storage", provisioner="a.example.com"),
    _sample("storage.k8s.io/v1", "CSIDriver", "driver", spec={}),
    _sample("storage.k8s.io/v1", "CSINode", "csinode", spec={"drivers": []}),
    _sample("scheduling.k8s.io/v1", "PriorityClass", "priority", value=10),
    _sample("node.k8s.io/v1", "RuntimeClass", "runtime", handler="runc"),
    _sample("autoscaling/v2", "HorizontalPodAutoscaler", "hpa", spec={"scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}, "maxReplicas": 3, "behavior": {"scaleUp": {"stabilizationWindowSeconds": 5}}}),
    _sample("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "validating", webhooks=[WEBHOOK]),
    _sample("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "mutating", webhooks=[WEBHOOK]),
    _sample(
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicy",
        "vap",
        spec={"matchConstraints": {"resourceRules": [WEBHOOK["rules"][0]]}, "validations": [{"expression": "true"}]},
    ),
    _sample("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", "vapb", spec={"policyName": "vap", "validationActions": ["Deny"], "matchResources": {}}),
    _sample("apiregistration.k8s.io/v1", "APIService", "v1.a.example.com", spec={"group": "a.example.com", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1, "service": {"name": "s", "namespace": "default"}, "insecureSkipTLSVerify": True}),
    _sample("flowcontrol.apiserver.k8s.io/v1", "FlowSchema", "flow", spec={"priorityLevelConfiguration": {"name": "exempt"}}),
    _sample("flowcontrol.apiserver.k8s.io/v1", "PriorityLevelConfiguration", "level", spec={"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}}),
    _sample("resource.k8s.io/v1", "DeviceClass", "device"),
    _sample("resource.k8s.io/v1", "ResourceClaim", "device-claim", spec={"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "device"}}]}}),
    _sample("resource.k8s.io/v1", "ResourceClaimTemplate", "device-template", spec={"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "device"}}]}}}),
    _sample("resource.k8s.io/v1", "ResourceSlice", "device-slice", spec={"driver": "a.example.com", "nodeName": "n", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "d"}]}),
    _sample("storage.k8s.io/v1", "VolumeAttachment", "attachment", spec={"attacher": "a.example.com", "nodeName": "n", "source": {"persistentVolumeName": "v"}}),
    _sample("storage.k8s.io/v1", "CSIStorageCapacity", "capacity", storageClassName="s", capacity="1Gi"),
    _sample("storage.k8s.io/v1", "VolumeAttributesClass", "attributes", driverName="a.example.com", parameters={"a": "b"}),
    _sample("networking.k8s.io/v1", "IPAddress", "10.96.0.5", spec={"parentRef": {"resource": "services", "namespace": "default", "name": "s"}}),
    _sample("networking.k8s.io/v1", "ServiceCIDR", "range", spec={"cidrs": ["10.97.0.0/16"]}),
    _sample("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy", "map", spec={"matchConstraints": {"resourceRules": [WEBHOOK["rules"][0]]}, "reinvocationPolicy": "Never", "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{}"}}]}),
    _sample("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicyBinding", "mapb", spec={"policyName": "map"}),
]  # fmt: skip
