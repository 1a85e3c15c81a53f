"""The operation scenarios of the upstream provisioning suite, by their names.

Where kubeadm has no machines with only one of the roles etcd and control plane, a server has both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from herder.api.management.names import DEFAULT_WORKSPACE
from tests.provisioning.operations.clusters import Distribution, OperatedCluster, create
from tests.support.cloud.s3 import S3Server
from tests.support.clusters import kubeadm_rotations
from tests.support.clusters.site import CLUSTERS, Object, Site
from tests.support.embedded import HERDER

KUBEADM, K3S = "kubeadm", "k3s"
CREDENTIAL = "s3-credential"
TOO_FEW = "waiting for at least one control plane, etcd, and worker node to be registered"
LOST = (
    "rkecontrolplane was already initialized but no etcd machines exist that have plans, indicating the etcd plane has "
    "been entirely replaced. Restoration from etcd snapshot is required."
)
FIRST_MANIFEST, SECOND_MANIFEST = (
    f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n  namespace: default\n"
    for name in ("first-manifest", "second-manifest")
)


@dataclass
class Run:
    distribution: Distribution
    site: Site
    s3: S3Server
    registered: bool

    def create(self, name: str, groups: Mapping[str, int], **etcd: object) -> OperatedCluster:
        full_name = f"{'custom' if self.registered else 'mp'}-{name}"
        config = {"etcd": {"disableSnapshots": True, **etcd}}
        return create(self.site, full_name, self.distribution, groups, registered=self.registered, **config)

    def storage(self, folder: str) -> Object:
        """Each cluster has its own folder: the snapshots of others would be listed too."""
        return {
            "cloudCredentialName": CREDENTIAL,
            "folder": folder,
            "endpoint": self.s3.endpoint,
            "endpointCA": self.s3.authority.path.read_text(),
        }

    @property
    def separate_roles(self) -> bool:
        return self.distribution.name == K3S


# --- scenarios --------------------------------------------------------------------------------------------------------


def certificate_rotation(run: Run) -> OperatedCluster:
    groups = {"members": 1, "planes": 1, "workers": 1} if run.separate_roles else {"servers": 1, "workers": 2}
    farm = run.create("certificates", groups)
    if run.distribution.name == KUBEADM:
        kubeadm_rotations.create_secret(farm)
        kubeadm_rotations.rotate_certificates(farm)
    else:
        run.site(HERDER, "rotate", "certificates", farm.name, "--timeout", str(run.site.timeout))
    assert farm.control_plane()["certificateRotationGeneration"] == 1
    assert condition(farm, "Reconciled") == "True"
    farm.kubectl("create", "configmap", "after-rotation")
    return farm


def encryption_key_rotation(run: Run) -> OperatedCluster:
    groups = {"members": 1, "others": 1} if run.separate_roles else {"servers": 1, "workers": 1}
    farm = run.create("keys", groups)
    kubeadm_rotations.create_secret(farm)
    if run.distribution.name == KUBEADM:
        kubeadm_rotations.rotate_keys(farm)
    else:
        run.site(HERDER, "rotate", "encryption-keys", farm.name, "--timeout", str(run.site.timeout))
    status = farm.control_plane()
    assert status["rotateEncryptionKeys"]["generation"] == 1
    assert status["rotateEncryptionKeysPhase"] == "Done"
    value = ("get", "secret", kubeadm_rotations.SECRET, "-o", "go-template={{.data.value | base64decode}}")
    assert farm.kubectl(*value) == kubeadm_rotations.VALUE
    return farm


def restore_in_place(run: Run) -> OperatedCluster:
    """Three snapshots; each mode of a restore reverts or keeps the manifest and the Kubernetes version."""
    farm = run.create("in-place", {"members": 1, "others": 1} if run.separate_roles else {"servers": 1, "workers": 1})
    machines = farm.uids()
    farm.kubectl("create", "configmap", "before")
    taken = [take_snapshot(farm) for _ in range(3)]

    set_manifest(farm, FIRST_MANIFEST)
    restore(farm, taken[2], mode="all", version=run.distribution.other_version)
    assert (manifest(farm), farm.spec()["kubernetesVersion"]) == ("", run.distribution.version)

    set_manifest(farm, SECOND_MANIFEST)
    if run.distribution.name == KUBEADM and not run.registered:  # beyond the upstream scenario: a real upgrade
        farm.upgrade(run.distribution.other_version)
        farm.until_ready("workers=1")
        assert kubelets(farm) == {run.distribution.other_version.partition("+")[0]}
    restore(farm, taken[1], mode="kubernetesVersion", version=run.distribution.other_version)
    assert (manifest(farm), farm.spec()["kubernetesVersion"]) == (SECOND_MANIFEST, run.distribution.version)
    assert kubelets(farm) == {run.distribution.version.partition("+")[0]}

    restore(farm, taken[0], mode="none")
    assert (manifest(farm), farm.spec()["kubernetesVersion"]) == (SECOND_MANIFEST, run.distribution.version)
    farm.kubectl("get", "configmap", "second-manifest")
    assert farm.uids() == machines
    return farm


def on_new_node(run: Run) -> OperatedCluster:
    if run.separate_roles:
        return restore_on_new_machines(run, "new-node", {"members": 1, "others": 1})
    return restore_on_new_machines(run, "new-node", {"servers": 1, "workers": 1})


def on_new_combined_node(run: Run) -> OperatedCluster:
    return restore_on_new_machines(run, "new-combined-node", {"servers": 1, "workers": 1})


def on_new_node_of_three(run: Run) -> OperatedCluster:
    if run.separate_roles:
        return restore_on_new_machines(run, "three-nodes", {"members": 3, "others": 1})
    return restore_on_new_machines(run, "three-nodes", {"servers": 3, "workers": 1})


def restore_on_new_machines(run: Run, name: str, groups: Mapping[str, int]) -> OperatedCluster:
    """All etcd machines are lost with their disks; a new one gets the data from S3."""
    (etcd, *_) = groups
    farm = run.create(name, groups, s3=run.storage(f"{name}-{'custom' if run.registered else 'mp'}"))
    farm.kubectl("create", "configmap", "before")
    snapshot = take_snapshot(farm, on="s3")
    farm.kubectl("create", "configmap", "after")
    farm.lose(etcd)
    run.site.eventually(lambda: TOO_FEW in farm.condition_messages(), "machines are missed", farm.condition_messages)
    farm.add(etcd)
    run.site.eventually(lambda: LOST in farm.condition_messages(), "the loss is reported", farm.condition_messages)
    restore_command(farm, snapshot)
    farm.until_nodes(1 + sum(groups.values()) - groups[etcd])
    names = farm.kubectl("get", "configmaps", "-o", "name").split()
    assert ("configmap/before" in names, "configmap/after" in names) == (True, False)
    run.site.eventually(lambda: set(farm.nodes()) == joined_nodes(farm), "lost Nodes are deleted")
    return farm


CUSTOM, MACHINE_POOLS = True, False
SCENARIOS: Mapping[str, tuple[bool, Callable[[Run], OperatedCluster]]] = {
    "Operation_SetA_Custom_CertificateRotation": (CUSTOM, certificate_rotation),
    "Operation_SetA_Custom_EncryptionKeyRotation": (CUSTOM, encryption_key_rotation),
    "Operation_SetA_Custom_EtcdSnapshotCreationRestoreInPlace": (CUSTOM, restore_in_place),
    "Operation_SetB_Custom_EtcdSnapshotOperationsOnNewCombinedNode": (CUSTOM, on_new_combined_node),
    "Operation_SetB_Custom_EtcdSnapshotOperationsOnNewNode": (CUSTOM, on_new_node),
    "Operation_SetA_MP_CertificateRotation": (MACHINE_POOLS, certificate_rotation),
    "Operation_SetA_MP_EncryptionKeyRotation": (MACHINE_POOLS, encryption_key_rotation),
    "Operation_SetA_MP_EtcdSnapshotCreationRestoreInPlace": (MACHINE_POOLS, restore_in_place),
    "Operation_SetB_MP_EtcdSnapshotOperationsOnNewNode": (MACHINE_POOLS, on_new_node),
    "Operation_SetB_MP_EtcdSnapshotOperationsWithThreeEtcdNodesOnNewNode": (MACHINE_POOLS, on_new_node_of_three),
}


# --- helpers ----------------------------------------------------------------------------------------------------------


def condition(farm: OperatedCluster, kind: str) -> str:
    return next(str(each["status"]) for each in farm.control_plane()["conditions"] if each["type"] == kind)


def take_snapshot(farm: OperatedCluster, on: str = "") -> str:
    """Take a snapshot and return the name of its ETCDSnapshot: in S3, or on the machine."""
    before = snapshots(farm).keys()
    farm.site(HERDER, "snapshot", "create", farm.name, "--timeout", str(farm.site.timeout))
    added = {name: each for name, each in snapshots(farm).items() if name not in before}
    return next(name for name, each in added.items() if (each["snapshotFile"]["nodeName"] == "s3") is (on == "s3"))


def snapshots(farm: OperatedCluster) -> dict[str, Object]:
    found = farm.site.listed("etcdsnapshots.rke.cattle.io")
    return {each["metadata"]["name"]: each for each in found if each["spec"]["clusterName"] == farm.name}


def restore(farm: OperatedCluster, snapshot: str, *, mode: str, version: str = "") -> None:
    """Delete the ConfigMap, and get it back. `version` is requested in the same write, as the upstream suite does."""
    farm.kubectl("delete", "configmap", "before")
    generation = int((farm.spec()["rkeConfig"].get("etcdSnapshotRestore") or {}).get("generation") or 0) + 1
    request = {"name": snapshot, "generation": generation, "restoreRKEConfig": mode}
    spec: Object = {"rkeConfig": {"etcdSnapshotRestore": request}}
    if version:
        spec["kubernetesVersion"] = version
    patch = json.dumps({"spec": spec})
    farm.site.kubectl("patch", CLUSTERS, farm.name, "-n", DEFAULT_WORKSPACE, "--type=merge", "-p", patch)
    farm.site(HERDER, "operations", farm.name, "--wait", "--timeout", str(farm.site.timeout))
    farm.site(HERDER, "wait", "cluster", farm.name, "--timeout", str(farm.site.timeout))
    farm.kubectl("get", "configmap", "before")


def restore_command(farm: OperatedCluster, snapshot: str) -> None:
    farm.site(HERDER, "snapshot", "restore", farm.name, snapshot, "--yes", "--timeout", str(farm.site.timeout))


def set_manifest(farm: OperatedCluster, text: str) -> None:
    farm.edit(additionalManifest=text)
    farm.site(HERDER, "wait", "cluster", farm.name, "--timeout", str(farm.site.timeout))


def manifest(farm: OperatedCluster) -> str:
    return str(farm.spec()["rkeConfig"].get("additionalManifest") or "")


def kubelets(farm: OperatedCluster) -> set[str]:
    return {each["status"]["nodeInfo"]["kubeletVersion"] for each in farm.nodes().values()}


def joined_nodes(farm: OperatedCluster) -> set[str]:
    return {each["status"]["nodeRef"]["name"] for each in farm.machines().values()}
