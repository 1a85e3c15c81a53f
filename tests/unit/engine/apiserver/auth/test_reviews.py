from __future__ import annotations

from typing import Any

import pytest

from herder.engine.apiserver.auth.authenticate import Authenticator, StaticTokens
from herder.engine.apiserver.auth.reviews import Reviews
from herder.engine.apiserver.request.handler_call import VirtualCall
from herder.engine.meta.errors import BadRequest, Invalid
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.wire import Request, User
from tests.unit.engine.apiserver.auth.world import ADMIN, ALICE, World, group, paths, rule, user


async def ask(world: World, plural: str, obj: Object, *, who: User = ADMIN, namespace: str = "") -> Any:
    authenticator = Authenticator(tokens=[StaticTokens({"alices-token": ALICE}), world.verifier])
    handlers = Reviews(world.authorizer, authenticator, world.verifier).handlers()
    api_group = "authentication.k8s.io" if plural in ("tokenreviews", "selfsubjectreviews") else "authorization.k8s.io"
    call = VirtualCall(who, namespace, world.now, world.random.randbytes, Request("POST", "/"))
    return (await handlers[GroupResource(api_group, plural)](obj, call)).get("status")


PODS = {"verb": "get", "resource": "pods", "namespace": "default"}


async def test_access_of_somebody_else_is_answered_with_the_reason(world: World) -> None:
    await world.cluster_role("reader", rule("get", "pods"))
    await world.bind("reader", user("bob"))
    spec = {"user": "bob", "resourceAttributes": PODS}
    assert await ask(world, "subjectaccessreviews", {"spec": spec}) == {
        "allowed": True,
        "reason": 'RBAC: allowed by ClusterRoleBinding "reader" of ClusterRole "reader" to User "bob"',
    }
    spec = {"user": "carol", "groups": ["g"], "resourceAttributes": PODS}
    assert await ask(world, "subjectaccessreviews", {"spec": spec}) == {"allowed": False}


async def test_access_by_group_alone_and_to_paths(world: World) -> None:
    await world.cluster_role("healthy", paths("get", "/healthz"))
    await world.bind("healthy", group("probers"))
    spec = {"groups": ["probers"], "nonResourceAttributes": {"path": "/healthz", "verb": "get"}}
    assert (await ask(world, "subjectaccessreviews", {"spec": spec}))["allowed"]


async def test_self_subject_access(world: World) -> None:
    spec = {"resourceAttributes": PODS}
    assert await ask(world, "selfsubjectaccessreviews", {"spec": spec}, who=ADMIN) == {"allowed": True}
    assert await ask(world, "selfsubjectaccessreviews", {"spec": spec}, who=ALICE) == {"allowed": False}


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
async def test_invalid_reviews_are_rejected(world: World, plural: str, spec: Object, expected: str) -> None:
    with pytest.raises(Invalid) as refusal:
        await ask(world, plural, {"spec": spec}, namespace="default")
    assert refusal.value.message == f'.authorization.k8s.io "" is invalid: {expected}'
    assert "kind" not in (refusal.value.details or {})


async def test_a_local_review_is_about_the_namespace_it_is_sent_to(world: World) -> None:
    review = {"metadata": {"namespace": "other"}, "spec": {"user": "bob", "resourceAttributes": PODS}}
    with pytest.raises(BadRequest, match="does not match the namespace sent on the request"):
        await ask(world, "localsubjectaccessreviews", review, namespace="default")
    spec = {"user": "bob", "resourceAttributes": PODS}
    assert await ask(world, "localsubjectaccessreviews", {"spec": spec}, namespace="default") == {"allowed": False}


async def test_a_review_has_no_name(world: World) -> None:
    with pytest.raises(Invalid, match="must be empty"):
        await ask(world, "selfsubjectaccessreviews", {"metadata": {"name": "x"}, "spec": {"resourceAttributes": PODS}})


async def test_self_subject_rules(world: World) -> None:
    await world.cluster_role("reader", rule("get", "pods", names="a"), paths("get", "/healthz"))
    await world.bind("reader", user("alice"), namespace="team")
    await world.bind("gone", user("alice"))
    status = await ask(world, "selfsubjectrulesreviews", {"spec": {"namespace": "team"}}, who=ALICE)
    assert status == {
        "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]}],
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz"]}],
        "incomplete": False,
        "evaluationError": 'clusterrole.rbac.authorization.k8s.io "gone" not found',
    }
    with pytest.raises(BadRequest, match="no namespace on request"):
        await ask(world, "selfsubjectrulesreviews", {"spec": {}}, who=ALICE)


async def test_token_review(world: World) -> None:
    own = ["https://kubernetes.default.svc.cluster.local"]
    account = await world.put("serviceaccounts", "builder", "ci")
    token = world.issuer.bound_token(account, now=world.now, seconds=600)
    status = await ask(world, "tokenreviews", {"spec": {"token": token}})
    assert status["authenticated"]
    assert status["audiences"] == own
    assert status["user"]["username"] == "system:serviceaccount:ci:builder"

    status = await ask(world, "tokenreviews", {"spec": {"token": "alices-token", "audiences": [*own, "a"]}})
    assert status == {
        "authenticated": True,
        "user": {"username": "alice", "uid": "alice-uid", "groups": ["dev", "system:authenticated"]},
        "audiences": own,
    }


async def test_tokens_that_are_not_good_are_answered_not_refused(world: World) -> None:
    unknown = {"user": {}, "error": "invalid bearer token"}
    assert await ask(world, "tokenreviews", {"spec": {"token": "x"}}) == unknown
    assert await ask(world, "tokenreviews", {"spec": {"token": "alices-token", "audiences": ["a"]}}) == unknown
    account = await world.put("serviceaccounts", "builder", "ci")
    token = world.issuer.bound_token(account, now=world.now, seconds=600)
    await world.delete("serviceaccounts", "builder", "ci")
    status = await ask(world, "tokenreviews", {"spec": {"token": token}})
    assert status["error"].startswith("[invalid bearer token, ")
    with pytest.raises(BadRequest, match="token is required for TokenReview in authentication"):
        await ask(world, "tokenreviews", {"spec": {}})


async def test_self_subject_review(world: World) -> None:
    assert await ask(world, "selfsubjectreviews", {"metadata": {"name": "ignored"}}, who=ALICE) == {
        "userInfo": {"username": "alice", "uid": "alice-uid", "groups": ["dev", "system:authenticated"]}
    }
