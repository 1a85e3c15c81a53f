from __future__ import annotations

from typing import Any

import pytest

from herder.engine.apiserver.auth.authenticate import Authenticator, StaticTokens
from herder.engine.apiserver.auth.reviews import Reviews
from herder.engine.apiserver.request.handler_call import VirtualCall
from herder.engine.meta.errors import BadRequest, Invalid
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.wire import Request, User
from tests.unit.engine.apiserver.auth.fake_cluster import ADMIN, ALICE, FakeCluster, group, paths, rule, user


async def submit_review(
    cluster: FakeCluster, plural: str, obj: Object, *, who: User = ADMIN, namespace: str = ""
) -> Any:
    authenticator = Authenticator(tokens=[StaticTokens({"alices-token": ALICE}), cluster.verifier])
    handlers = Reviews(cluster.authorizer, authenticator, cluster.verifier).handlers()
    api_group = "authentication.k8s.io" if plural in ("tokenreviews", "selfsubjectreviews") else "authorization.k8s.io"
    call = VirtualCall(who, namespace, cluster.now, cluster.random.randbytes, Request("POST", "/"))
    return (await handlers[GroupResource(api_group, plural)](obj, call)).get("status")


PODS = {"verb": "get", "resource": "pods", "namespace": "default"}


async def test_a_subject_access_review_returns_the_reason(cluster: FakeCluster) -> None:
    await cluster.cluster_role("reader", rule("get", "pods"))
    await cluster.bind("reader", user("bob"))
    spec = {"user": "bob", "resourceAttributes": PODS}
    assert await submit_review(cluster, "subjectaccessreviews", {"spec": spec}) == {
        "allowed": True,
        "reason": 'RBAC: allowed by ClusterRoleBinding "reader" of ClusterRole "reader" to User "bob"',
    }
    spec = {"user": "carol", "groups": ["g"], "resourceAttributes": PODS}
    assert await submit_review(cluster, "subjectaccessreviews", {"spec": spec}) == {"allowed": False}


async def test_a_subject_access_review_accepts_groups_only_and_paths(cluster: FakeCluster) -> None:
    await cluster.cluster_role("healthy", paths("get", "/healthz"))
    await cluster.bind("healthy", group("probers"))
    spec = {"groups": ["probers"], "nonResourceAttributes": {"path": "/healthz", "verb": "get"}}
    assert (await submit_review(cluster, "subjectaccessreviews", {"spec": spec}))["allowed"]


async def test_self_subject_access(cluster: FakeCluster) -> None:
    spec = {"resourceAttributes": PODS}
    assert await submit_review(cluster, "selfsubjectaccessreviews", {"spec": spec}, who=ADMIN) == {"allowed": True}
    assert await submit_review(cluster, "selfsubjectaccessreviews", {"spec": spec}, who=ALICE) == {"allowed": False}


@pytest.mark.parametrize(
    ("plural", "spec", "expected"),
    [
        (
            "subjectaccessreviews",
            {},
            "[spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or "
            'resourceAttributes must be specified, spec.user: Invalid value: "": at least one of user or group must be '
            "specified]",
        ),
        (
            "selfsubjectaccessreviews",
            {"resourceAttributes": PODS, "nonResourceAttributes": {"path": "/", "verb": "get"}},
            'spec.nonResourceAttributes: Invalid value: {"Path":"/","Verb":"get"}: cannot be specified in combination '
            "with resourceAttributes",
        ),
        (
            "localsubjectaccessreviews",
            {"user": "bob", "resourceAttributes": PODS | {"namespace": "other"}},
            'spec.resourceAttributes.namespace: Invalid value: "other": must match metadata.namespace',
        ),
        (
            "localsubjectaccessreviews",
            {"user": "bob", "nonResourceAttributes": {"path": "/x", "verb": "get"}},
            'spec.nonResourceAttributes: Invalid value: {"Path":"/x","Verb":"get"}: disallowed on this kind of request',
        ),
    ],
)
async def test_invalid_reviews_are_rejected(cluster: FakeCluster, plural: str, spec: Object, expected: str) -> None:
    with pytest.raises(Invalid) as refusal:
        await submit_review(cluster, plural, {"spec": spec}, namespace="default")
    assert refusal.value.message == f'.authorization.k8s.io "" is invalid: {expected}'
    assert "kind" not in (refusal.value.details or {})


async def test_a_local_review_applies_to_the_namespace_of_the_request(cluster: FakeCluster) -> None:
    review = {"metadata": {"namespace": "other"}, "spec": {"user": "bob", "resourceAttributes": PODS}}
    with pytest.raises(BadRequest, match="does not match the namespace sent on the request"):
        await submit_review(cluster, "localsubjectaccessreviews", review, namespace="default")
    spec = {"user": "bob", "resourceAttributes": PODS}
    assert await submit_review(cluster, "localsubjectaccessreviews", {"spec": spec}, namespace="default") == {
        "allowed": False
    }


async def test_a_review_has_no_name(cluster: FakeCluster) -> None:
    with pytest.raises(Invalid, match="must be empty"):
        await submit_review(
            cluster, "selfsubjectaccessreviews", {"metadata": {"name": "x"}, "spec": {"resourceAttributes": PODS}}
        )


async def test_self_subject_rules(cluster: FakeCluster) -> None:
    await cluster.cluster_role("reader", rule("get", "pods", names="a"), paths("get", "/healthz"))
    await cluster.bind("reader", user("alice"), namespace="team")
    await cluster.bind("gone", user("alice"))
    status = await submit_review(cluster, "selfsubjectrulesreviews", {"spec": {"namespace": "team"}}, who=ALICE)
    assert status == {
        "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]}],
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz"]}],
        "incomplete": False,
        "evaluationError": 'clusterrole.rbac.authorization.k8s.io "gone" not found',
    }
    with pytest.raises(BadRequest, match="no namespace on request"):
        await submit_review(cluster, "selfsubjectrulesreviews", {"spec": {}}, who=ALICE)


async def test_token_review(cluster: FakeCluster) -> None:
    own = ["https://kubernetes.default.svc.cluster.local"]
    account = await cluster.put("serviceaccounts", "builder", "ci")
    token = cluster.issuer.bound_token(account, now=cluster.now, seconds=600)
    status = await submit_review(cluster, "tokenreviews", {"spec": {"token": token}})
    assert status["authenticated"]
    assert status["audiences"] == own
    assert status["user"]["username"] == "system:serviceaccount:ci:builder"

    status = await submit_review(cluster, "tokenreviews", {"spec": {"token": "alices-token", "audiences": [*own, "a"]}})
    assert status == {
        "authenticated": True,
        "user": {"username": "alice", "uid": "alice-uid", "groups": ["dev", "system:authenticated"]},
        "audiences": own,
    }


async def test_a_token_review_of_an_invalid_token_succeeds_with_an_error(cluster: FakeCluster) -> None:
    unknown = {"user": {}, "error": "invalid bearer token"}
    assert await submit_review(cluster, "tokenreviews", {"spec": {"token": "x"}}) == unknown
    assert (
        await submit_review(cluster, "tokenreviews", {"spec": {"token": "alices-token", "audiences": ["a"]}}) == unknown
    )
    account = await cluster.put("serviceaccounts", "builder", "ci")
    token = cluster.issuer.bound_token(account, now=cluster.now, seconds=600)
    await cluster.delete("serviceaccounts", "builder", "ci")
    status = await submit_review(cluster, "tokenreviews", {"spec": {"token": token}})
    assert status["error"].startswith("[invalid bearer token, ")
    with pytest.raises(BadRequest, match="token is required for TokenReview in authentication"):
        await submit_review(cluster, "tokenreviews", {"spec": {}})


async def test_self_subject_review(cluster: FakeCluster) -> None:
    assert await submit_review(cluster, "selfsubjectreviews", {"metadata": {"name": "ignored"}}, who=ALICE) == {
        "userInfo": {"username": "alice", "uid": "alice-uid", "groups": ["dev", "system:authenticated"]}
    }
