"""Admission of fields that a distribution does not support: new values are rejected, stored ones stay."""

from __future__ import annotations

import pytest

from herder.engine.meta.kinds import Object
from tests.unit.api.rke.test_admission import ADMISSION, IMPORTED, KUBEADM, Case, cluster, pool

STACK = "spec.rkeConfig.networking.stackPreference"
BUILDS = ("k3s1", "rke2r1", "kubeadm1", "herder1")


def exported(build: str) -> Object:
    """A Cluster with the values that Rancher's clients write for fields that the user leaves alone."""
    off = {"enabled": False, "force": False, "ignoreErrors": False, "timeout": 120, "postDrainHooks": None}
    is_rancher = build in ("k3s1", "rke2r1")
    schedule = {"snapshotScheduleCron": "0 */5 * * *"} if is_rancher else {}
    customization = {"appendTolerations": None, "overrideAffinity": {}, "overrideResourceRequirements": {"limits": {}}}
    spec = {
        "kubernetesVersion": f"v1.34.1+{build}",
        "agentEnvVars": [],
        "clusterAgentDeploymentCustomization": customization,
        "defaultClusterRoleForProjectMembers": "",
        "defaultPodSecurityAdmissionConfigurationTemplateName": "",
        "enableNetworkPolicy": False,
        "fleetAgentDeploymentCustomization": customization,
        "localClusterAuthEndpoint": {"enabled": False, "caCerts": "", "fqdn": ""},
        "redeploySystemAgentGeneration": 0,
    }
    return cluster(
        spec=spec,
        additionalManifest="",
        chartValues={"rke2-calico": {}},
        dataDirectories={"systemAgent": "", "provisioning": "", "k8sDistro": ""},
        etcd={"disableSnapshots": False, "s3": None, "snapshotRetention": 5, **schedule},
        etcdSnapshotCreate={"generation": 0},
        machineSelectorConfig=[{"config": {"protect-kernel-defaults": False} if is_rancher else {}}],
        machineSelectorFiles=[],
        networking={"stackPreference": "ipv4"},
        registries={"configs": {}, "mirrors": {}},
        rotateCertificates={"generation": 0, "services": None, "caCertificates": False},
        upgradeStrategy={"controlPlaneConcurrency": "1", "controlPlaneDrainOptions": off, "workerDrainOptions": off},
        machinePools=[pool(machineOS="linux", drainBeforeDelete=True, hostnameLengthLimit=0)],
    )


CASES: dict[str, Case] = {
    **{f"defaults of Rancher's clients on {build}": Case(exported(build)) for build in BUILDS},
    "a field that the distribution does not support": Case(
        cluster(spec=KUBEADM, chartValues={"a": {"b": "c"}}), ("spec.rkeConfig.chartValues",)
    ),
    "certificate authorities of a distribution that cannot rotate them": Case(
        cluster(spec=KUBEADM, rotateCertificates={"generation": 1, "caCertificates": True}),
        ("spec.rkeConfig.rotateCertificates.caCertificates",),
    ),
    "certificate authorities of K3s": Case(cluster(rotateCertificates={"generation": 1, "caCertificates": True})),
    "every unsupported field is named": Case(
        cluster(spec=KUBEADM, chartValues={"a": {"b": "c"}}, networking={"stackPreference": "ipv6"}),
        ("spec.rkeConfig.chartValues", STACK),
    ),
    "entries of maps and lists are named": Case(
        cluster(
            spec=KUBEADM,
            registries={"mirrors": {"docker.io": {"rewrite": {"a": "b"}}, "ghcr.io": {"rewrite": {}}}},
            machinePools=[pool("a"), pool("b", machineOS="windows")],
        ),
        ("spec.rkeConfig.machinePools[1].machineOS", "spec.rkeConfig.registries.mirrors[docker.io].rewrite"),
    ),
    "an unsupported value that was stored may stay": Case(
        cluster(spec=KUBEADM, networking={"stackPreference": "ipv6"}, provisionGeneration=1),
        (),
        cluster(spec=KUBEADM, networking={"stackPreference": "ipv6"}),
    ),
    "an unsupported value may be removed": Case(
        cluster(spec=KUBEADM), (), cluster(spec=KUBEADM, networking={"stackPreference": "ipv6"})
    ),
    "an unsupported value cannot become another one": Case(
        cluster(spec=KUBEADM, networking={"stackPreference": "dual"}),
        (STACK,),
        cluster(spec=KUBEADM, networking={"stackPreference": "ipv6"}),
    ),
    "a pool keeps its unsupported value when it moves": Case(
        cluster(machinePools=[pool("a"), pool("b", machineOS="windows")]),
        (),
        cluster(machinePools=[pool("b", machineOS="windows"), pool("a")]),
    ),
    "another pool cannot get the value": Case(
        cluster(machinePools=[pool("b", machineOS="windows"), pool("c", machineOS="windows")]),
        ("spec.rkeConfig.machinePools[1].machineOS",),
        cluster(machinePools=[pool("b", machineOS="windows")]),
    ),
    "a cluster without a version has no distribution yet": Case(
        cluster(spec={"kubernetesVersion": None}, etcdSnapshotCreate={"generation": 1})
    ),
    "the first version decides about stored values": Case(
        cluster(spec=KUBEADM, networking={"stackPreference": "ipv6"}),
        (STACK,),
        cluster(spec={"kubernetesVersion": None}, networking={"stackPreference": "ipv6"}),
    ),
    "an imported cluster has no fields that all distributions refuse": Case(
        IMPORTED | {"spec": {"enableNetworkPolicy": True, "agentEnvVars": [{"name": "A", "value": "b"}]}},
        ("spec.enableNetworkPolicy",),
    ),
    "an imported cluster keeps its stored fields": Case(
        IMPORTED | {"spec": {"enableNetworkPolicy": True, "cloudCredentialSecretName": "a"}},
        (),
        IMPORTED | {"spec": {"enableNetworkPolicy": True}},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_fields_without_effect_are_rejected(case: str) -> None:
    new, fields, old = CASES[case]
    problems = ADMISSION.validate(new, old)
    assert tuple(problem.field for problem in problems) == fields
    assert all("not supported" in str(problem) for problem in problems)
