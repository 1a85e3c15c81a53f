"""Names, types and fields that belong to the manager, and writes of the same kinds that users may do."""

from __future__ import annotations

from herder.api.capi.kinds import NAMESPACE, SECRET
from herder.api.identity.projects import PROJECT_ID
from herder.api.machines.credentials import CREATED_BY, CREATOR, CREDENTIAL_TYPE
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROJECT, PROVISIONING_CLUSTER, REGISTRATION_TOKEN
from herder.api.management.names import MANAGEMENT_NAME, TOKEN_LABEL
from herder.api.rke import names
from herder.engine.meta.kinds import Object
from tests.support.tenancy.case import CONTROLLER, Case, encoded, managed, provisioned, secret
from tests.support.tenancy.users import USER

TOKEN_TYPE = "kubernetes.io/service-account-token"
ACCOUNT = "kubernetes.io/service-account.name"


def _account_token(id_: str, name: str, data: Object | None = None, *, string: bool = False) -> Case:
    meta = {"name": name, "namespace": "fleet-default", "annotations": {ACCOUNT: "default"}}
    fields: Object = {} if data is None else {"stringData" if string else "data": data}
    return Case(id_, SECRET, meta, {"type": TOKEN_TYPE, **fields})


def _project(id_: str, name: str, cluster: str = "default") -> Case:
    return Case(id_, PROJECT, {"name": name, "namespace": "default"}, {"spec": {"clusterName": cluster}})


REFUSED = (
    # Management Clusters.
    managed("internal", "c-internal", internal=True),
    managed("becomes internal", "c-later", {"spec": {"internal": True}}),
    managed("the manager's own name", "local"),
    managed("a system namespace", "kube-system"),
    managed("a system namespace to come", "cattle-fleet-system"),
    managed("an ordinary name of a namespace", "payroll"),
    Case("a generated name", MANAGEMENT_CLUSTER, {"generateName": "kube-"}, {"spec": {}}),
    managed("the namespace of a project", "c-m-abcdefgh-p-xyz"),
    managed("the generated name of another cluster", "c-m-abcdefgh"),
    Case("a prefix of generated names", MANAGEMENT_CLUSTER, {"generateName": "c-m-abc"}, {"spec": {}}),
    managed("a workspace in a system namespace", "c-aaaaa", fleetWorkspaceName="kube-system"),
    # Provisioning Clusters.
    provisioned("asks for a system namespace", "p-one", **{MANAGEMENT_NAME: "cattle-system"}),
    provisioned("asks for the manager's own", "p-two", **{MANAGEMENT_NAME: "local"}),
    provisioned("asks for the generated name of another cluster", "p-four", **{MANAGEMENT_NAME: "c-m-abcdefgh"}),
    provisioned("in a system namespace", "p-three", "kube-system"),
    provisioned("the manager's own name in another namespace", "local"),
    provisioned("the name of the pair of a management Cluster", "c-aaaa1"),
    Case(
        "a generated name of such a pair",
        PROVISIONING_CLUSTER,
        {"generateName": "c-", "namespace": "fleet-default"},
        {"spec": {}},
    ),
    # Projects.
    _project("a project of another cluster", "p-x", "local"),
    _project("a project with a dash", "p-x-y"),
    Case(
        "a namespace joins a project",
        NAMESPACE,
        {"name": "tenancy-joins"},
        patch={"metadata": {"annotations": {PROJECT_ID: "local:p-abcde"}}},
    ),
    Case(
        "a namespace joins a project by its status",
        NAMESPACE,
        {"name": "tenancy-joins-too"},
        patch={"metadata": {"annotations": {PROJECT_ID: "local:p-abcde"}}},
        subresource="status",
    ),
    # Credentials that only the manager issues.
    _account_token("a token of their own", "forged", {"token": encoded("mine")}),
    _account_token("a token of their own in plain text", "forged-plain", {"token": "mine"}, string=True),
    _account_token("a token of an account that they may not use", "borrowed"),
    Case(
        "a registration token of their own",
        REGISTRATION_TOKEN,
        {"name": "forged", "namespace": "default"},
        {"spec": {"clusterName": "default"}, "status": {"token": "mine"}},
    ),
    secret("labelled as bootstrap token", "labelled", labels={names.ACCOUNT_ROLE: names.ACCOUNT_FOR_BOOTSTRAP}),
    secret("labelled as registration token", "labelled-2", labels={TOKEN_LABEL: "default-token"}),
    secret("labelled as request of a machine, without a value", "labelled-3", labels={names.REQUEST_FOR: ""}),
    secret("a plan", "some-plan", type=names.PLAN_SECRET_TYPE),
    secret("a request of a machine", "some-request", type=names.REQUEST_SECRET_TYPE),
    secret("what machines join with", "some-state", type=names.TOKENS_SECRET_TYPE),
    secret("owned by an object of the manager", "owned", ownerReferences=[CONTROLLER]),
    secret("named as a kubeconfig", "meadow-kubeconfig"),
    secret("named as an authority", "meadow-ca"),
    secret("named as a plan", "pool-1-abc-machine-plan"),
    secret("named as an agent's credential", "cluster-serviceaccounttoken-c-m-abcdefgh", "cattle-global-data"),
    secret("with an empty mark of the manager", "cc-empty", annotations={CREATOR: USER, CREATED_BY: ""}),
    secret("in the name of another user", "cc-theirs", type=CREDENTIAL_TYPE, annotations={CREATOR: "victim"}),
    Case(
        "a credential that exists becomes their own",
        SECRET,
        {"name": "held", "namespace": "default"},
        {"type": CREDENTIAL_TYPE},
        {"metadata": {"annotations": {CREATOR: USER}}},
    ),
)

ALLOWED = (
    managed("a cluster", "c-m-tenancy", displayName="barn"),
    Case("a generated name", MANAGEMENT_CLUSTER, {"generateName": "c-"}, {"spec": {}}),
    managed("a label", "c-labelled", {"metadata": {"labels": {"a": "b"}}}),
    managed("a legacy cluster", "c-bbbbb", fleetWorkspaceName="fleet-default"),
    provisioned("a provisioned cluster", "tenancy"),
    provisioned("with a name of its own", "tenancy-2", **{MANAGEMENT_NAME: "c-own-22222222"}),
    _project("a project", "p-fine"),
    Case("a namespace", NAMESPACE, {"name": "tenancy-plain"}, patch={"metadata": {"labels": {"a": "b"}}}),
    Case(
        "a registration token",
        REGISTRATION_TOKEN,
        {"name": "fine", "namespace": "default"},
        {"spec": {"clusterName": "default"}},
    ),
    secret("a credential", "cc-mine", type=CREDENTIAL_TYPE, annotations={CREATOR: USER}),
    secret("a credential of older managers", "cc-old", "cattle-global-data", annotations={CREATOR: USER}),
    secret("a registry's login", "registry", type=names.AUTH_SECRET_TYPE, annotations={CREATOR: USER}),
    secret("any Secret", "files-of-mine", annotations={CREATOR: USER}),
)
