from __future__ import annotations

from typing import Any

import pytest

from herder.engine.apiserver.admission.chain import CREATE, Attributes
from herder.engine.apiserver.admission.evaluation import Evaluation
from herder.engine.apiserver.admission.objects import Objects
from herder.engine.apiserver.admission.policies.validating import ValidatingPolicies
from herder.engine.apiserver.compute import InlineExecutor
from herder.engine.apiserver.registry.resources import Registry, Resource
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Object
from tests.unit.engine.apiserver.auth.fake_cluster import ALICE, FakeCluster
from tests.unit.engine.apiserver.resources import resource

GROUP = "admissionregistration.k8s.io"
EVALUATION = Evaluation(InlineExecutor())
CONFIG_MAPS = resource("configmaps", kind="ConfigMap")
MATCH = {
    "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]
}


async def create_policy(cluster: FakeCluster, *validations: Object, binding: Object | None = None, **spec: Any) -> None:
    complete = {"matchConstraints": MATCH, "validations": list(validations)} | spec
    await cluster.put("validatingadmissionpolicies", "p", group=GROUP, spec=complete)
    bound = {"policyName": "p", "validationActions": ["Deny"]} | (binding or {})
    await cluster.put("validatingadmissionpolicybindings", "b", group=GROUP, spec=bound)
    await cluster.put("namespaces", "ci", metadata={"labels": {"team": "ci"}})


def plugin(cluster: FakeCluster, *resources: Resource) -> ValidatingPolicies:
    return ValidatingPolicies(
        Objects(cluster.store), Registry([CONFIG_MAPS, *resources]), cluster.authorizer, EVALUATION
    )


async def write(cluster: FakeCluster, name: str = "x", served: Resource = CONFIG_MAPS, **body: Any) -> list[str]:
    """Run admission and return the warnings."""
    obj = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}} | body
    attributes = Attributes(CREATE, served, "v1", ALICE, name=name, namespace="ci", obj=obj)
    await plugin(cluster).validate(attributes)
    return attributes.warnings


async def rejected(cluster: FakeCluster, name: str = "x") -> StatusError:
    with pytest.raises(StatusError) as refusal:
        await write(cluster, name)
    return refusal.value


async def test_a_policy_denies_writes_that_fail_its_expressions(cluster: FakeCluster) -> None:
    await create_policy(cluster, {"expression": "object.metadata.name != 'no'", "message": "not no"})
    await write(cluster, "yes")
    refusal = await rejected(cluster, "no")
    expected = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: not no"
    assert refusal.message == f'configmaps "no" is forbidden: {expected}'
    assert (refusal.code, refusal.reason) == (422, "Invalid")
    assert refusal.details == {"name": "no", "kind": "configmaps", "causes": [{"message": expected}]}


@pytest.mark.parametrize(
    ("validation", "expected", "code"),
    [
        ({"expression": "  object.metadata.name != 'x'"}, "failed expression: object.metadata.name != 'x'", 422),
        ({"expression": "false", "messageExpression": "'bad ' + object.metadata.name"}, "bad x", 422),
        ({"expression": "false", "messageExpression": "object.gone", "message": "plain"}, "plain", 422),
        ({"expression": "false", "messageExpression": "'two\\nlines'", "message": "plain"}, "plain", 422),
        ({"expression": "false", "message": "no", "reason": "Forbidden"}, "no", 403),
        ({"expression": "false", "message": "no", "reason": "Unauthorized"}, "no", 401),
        (
            {"expression": "object.data.x == 'y'"},
            "expression 'object.data.x == 'y'' resulted in error: no such key: data",
            422,
        ),
    ],
)
async def test_the_message_comes_from_the_most_specific_field(
    cluster: FakeCluster, validation: Object, expected: str, code: int
) -> None:
    await create_policy(cluster, validation)
    refusal = await rejected(cluster)
    assert refusal.message.endswith(f"denied request: {expected}")
    assert refusal.code == code


async def test_variables_are_shared_by_expressions(cluster: FakeCluster) -> None:
    await create_policy(
        cluster,
        {"expression": "variables.longer == 'x!'"},
        variables=[
            {"name": "name", "expression": "object.metadata.name"},
            {"name": "longer", "expression": "variables.name + '!'"},
        ],
    )
    await write(cluster, "x")
    await rejected(cluster, "y")


async def test_a_failing_variable_matters_only_where_it_is_used(cluster: FakeCluster) -> None:
    variables = [{"name": "bad", "expression": "object.spec.foo"}]
    await create_policy(cluster, {"expression": "object.metadata.name == 'x'"}, variables=variables)
    await write(cluster)
    await create_policy(cluster, {"expression": "variables.bad == 1"}, variables=variables)
    assert (await rejected(cluster)).message.endswith(
        "expression 'variables.bad == 1' resulted in error: "
        'composited variable "bad" fails to evaluate: no such key: spec'
    )


async def test_failures_are_ignored_with_failure_policy_ignore(cluster: FakeCluster) -> None:
    await create_policy(cluster, {"expression": "object.data.x == 'y'"}, failurePolicy="Ignore")
    await write(cluster)
    await create_policy(cluster, {"expression": "false"}, failurePolicy="Ignore")
    await rejected(cluster)


async def test_a_policy_that_does_not_compile_fails_closed(cluster: FakeCluster) -> None:
    await create_policy(cluster, {"expression": "nonsense("})
    assert "denied request: compilation error" in (await rejected(cluster)).message


async def test_a_binding_may_warn_instead_of_deny(cluster: FakeCluster) -> None:
    await create_policy(
        cluster, {"expression": "false", "message": "hm"}, binding={"validationActions": ["Warn", "Audit"]}
    )
    assert await write(cluster) == ["Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': hm"]


async def test_a_policy_without_a_binding_is_not_enforced(cluster: FakeCluster) -> None:
    await create_policy(cluster, {"expression": "false"}, binding={"policyName": "other"})
    await write(cluster)


async def test_a_change_of_policy_takes_effect_with_the_next_write(cluster: FakeCluster) -> None:
    await create_policy(cluster, {"expression": "true"})
    judge = plugin(cluster)
    attributes = Attributes(CREATE, CONFIG_MAPS, "v1", ALICE, name="x", namespace="ci", obj={"metadata": {}})
    await judge.validate(attributes)
    await create_policy(cluster, {"expression": "false"})
    with pytest.raises(StatusError):
        await judge.validate(attributes)


@pytest.mark.parametrize(
    ("constraints", "binding", "asked"),
    [
        ({}, {}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "other"}}}, {}, False),
        ({"excludeResourceRules": MATCH["resourceRules"]}, {}, False),
        ({}, {"namespaceSelector": {"matchLabels": {"team": "ci"}}}, True),
        ({}, {"namespaceSelector": {"matchLabels": {"team": "other"}}}, False),
        ({}, {"resourceRules": [MATCH["resourceRules"][0] | {"resourceNames": ["y"]}]}, False),
        ({"resourceRules": [MATCH["resourceRules"][0] | {"operations": ["DELETE"]}]}, {}, False),
    ],
)
async def test_policy_and_binding_must_both_match(
    cluster: FakeCluster, constraints: Object, binding: Object, asked: bool
) -> None:
    await create_policy(
        cluster, {"expression": "false"}, matchConstraints=MATCH | constraints, binding={"matchResources": binding}
    )
    if asked:
        await rejected(cluster)
    else:
        await write(cluster)


async def test_match_conditions_are_evaluated_first(cluster: FakeCluster) -> None:
    condition = {"name": "c", "expression": "request.userInfo.username != 'alice'"}
    await create_policy(cluster, {"expression": "false"}, matchConditions=[condition])
    await write(cluster)


async def test_expressions_can_use_the_namespace_and_the_authorizer(cluster: FakeCluster) -> None:
    await create_policy(
        cluster,
        {"expression": "namespaceObject.metadata.labels['team'] == 'ci'"},
        {"expression": "!authorizer.group('').resource('pods').namespace('ci').check('get').allowed()"},
    )
    await write(cluster)


PARAMS = {"paramKind": {"apiVersion": "example.com/v1", "kind": "Limit"}}
LIMITS = resource("limits", group="example.com", kind="Limit")


async def evaluate_with_params(cluster: FakeCluster, name: str) -> None:
    obj = {"metadata": {"name": name}}
    attributes = Attributes(CREATE, CONFIG_MAPS, "v1", ALICE, name=name, namespace="ci", obj=obj)
    await plugin(cluster, LIMITS).validate(attributes)


async def test_parameters_are_read_from_other_objects(cluster: FakeCluster) -> None:
    await create_policy(
        cluster,
        {"expression": "params.allowed == object.metadata.name"},
        binding={"paramRef": {"name": "limit", "parameterNotFoundAction": "Deny"}},
        **PARAMS,
    )
    with pytest.raises(StatusError) as refusal:
        await evaluate_with_params(cluster, "x")
    assert refusal.value.message.endswith(
        "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
    )
    await cluster.put("limits", "limit", "ci", group="example.com", allowed="x")
    await evaluate_with_params(cluster, "x")
    with pytest.raises(StatusError, match="failed expression"):
        await evaluate_with_params(cluster, "y")


async def test_every_selected_parameter_is_evaluated(cluster: FakeCluster) -> None:
    reference = {"selector": {"matchLabels": {"on": "yes"}}, "parameterNotFoundAction": "Allow"}
    await create_policy(
        cluster,
        {"expression": "object.metadata.name.startsWith(params.prefix)"},
        binding={"paramRef": reference},
        **PARAMS,
    )
    await evaluate_with_params(cluster, "anything")
    for name, prefix, labels in (("a", "x", {"on": "yes"}), ("b", "xy", {"on": "yes"}), ("c", "z", {})):
        await cluster.put("limits", name, "ci", group="example.com", prefix=prefix, metadata={"labels": labels})
    await evaluate_with_params(cluster, "xyz")
    with pytest.raises(StatusError):
        await evaluate_with_params(cluster, "xz")


async def test_an_unknown_param_kind_fails_closed(cluster: FakeCluster) -> None:
    await create_policy(cluster, {"expression": "true"}, binding={"paramRef": {"name": "limit"}}, **PARAMS)
    assert "not known" in (await rejected(cluster)).message
