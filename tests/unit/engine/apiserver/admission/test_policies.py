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
from tests.unit.engine.apiserver.auth.world import ALICE, World
from tests.unit.engine.apiserver.resources import resource

GROUP = "admissionregistration.k8s.io"
EVALUATION = Evaluation(InlineExecutor())
CONFIG_MAPS = resource("configmaps", kind="ConfigMap")
MATCH = {
    "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]
}


async def policy(world: World, *validations: Object, binding: Object | None = None, **spec: Any) -> None:
    complete = {"matchConstraints": MATCH, "validations": list(validations)} | spec
    await world.put("validatingadmissionpolicies", "p", group=GROUP, spec=complete)
    bound = {"policyName": "p", "validationActions": ["Deny"]} | (binding or {})
    await world.put("validatingadmissionpolicybindings", "b", group=GROUP, spec=bound)
    await world.put("namespaces", "ci", metadata={"labels": {"team": "ci"}})


def plugin(world: World, *resources: Resource) -> ValidatingPolicies:
    return ValidatingPolicies(Objects(world.store), Registry([CONFIG_MAPS, *resources]), world.authorizer, EVALUATION)


async def write(world: World, name: str = "x", served: Resource = CONFIG_MAPS, **body: Any) -> list[str]:
    """Run admission and return the warnings."""
    obj = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}} | body
    attributes = Attributes(CREATE, served, "v1", ALICE, name=name, namespace="ci", obj=obj)
    await plugin(world).validate(attributes)
    return attributes.warnings


async def rejected(world: World, name: str = "x") -> StatusError:
    with pytest.raises(StatusError) as refusal:
        await write(world, name)
    return refusal.value


async def test_a_policy_refuses_what_its_expressions_say(world: World) -> None:
    await policy(world, {"expression": "object.metadata.name != 'no'", "message": "not no"})
    await write(world, "yes")
    refusal = await rejected(world, "no")
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
async def test_the_message_is_the_best_there_is(world: World, validation: Object, expected: str, code: int) -> None:
    await policy(world, validation)
    refusal = await rejected(world)
    assert refusal.message.endswith(f"denied request: {expected}")
    assert refusal.code == code


async def test_variables_are_shared_by_expressions(world: World) -> None:
    await policy(
        world,
        {"expression": "variables.longer == 'x!'"},
        variables=[
            {"name": "name", "expression": "object.metadata.name"},
            {"name": "longer", "expression": "variables.name + '!'"},
        ],
    )
    await write(world, "x")
    await rejected(world, "y")


async def test_a_variable_that_fails_matters_only_where_it_is_used(world: World) -> None:
    variables = [{"name": "bad", "expression": "object.spec.foo"}]
    await policy(world, {"expression": "object.metadata.name == 'x'"}, variables=variables)
    await write(world)
    await policy(world, {"expression": "variables.bad == 1"}, variables=variables)
    assert (await rejected(world)).message.endswith(
        "expression 'variables.bad == 1' resulted in error: "
        'composited variable "bad" fails to evaluate: no such key: spec'
    )


async def test_failures_are_ignored_where_the_policy_says_so(world: World) -> None:
    await policy(world, {"expression": "object.data.x == 'y'"}, failurePolicy="Ignore")
    await write(world)
    await policy(world, {"expression": "false"}, failurePolicy="Ignore")
    await rejected(world)


async def test_a_policy_that_does_not_compile_fails_closed(world: World) -> None:
    await policy(world, {"expression": "nonsense("})
    assert "denied request: compilation error" in (await rejected(world)).message


async def test_a_binding_may_warn_instead_of_refusing(world: World) -> None:
    await policy(world, {"expression": "false", "message": "hm"}, binding={"validationActions": ["Warn", "Audit"]})
    assert await write(world) == ["Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': hm"]


async def test_a_policy_without_binding_is_not_in_force(world: World) -> None:
    await policy(world, {"expression": "false"}, binding={"policyName": "other"})
    await write(world)


async def test_a_change_of_policy_takes_effect_with_the_next_write(world: World) -> None:
    await policy(world, {"expression": "true"})
    judge = plugin(world)
    attributes = Attributes(CREATE, CONFIG_MAPS, "v1", ALICE, name="x", namespace="ci", obj={"metadata": {}})
    await judge.validate(attributes)
    await policy(world, {"expression": "false"})
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
    world: World, constraints: Object, binding: Object, asked: bool
) -> None:
    await policy(
        world, {"expression": "false"}, matchConstraints=MATCH | constraints, binding={"matchResources": binding}
    )
    if asked:
        await rejected(world)
    else:
        await write(world)


async def test_match_conditions_come_first(world: World) -> None:
    condition = {"name": "c", "expression": "request.userInfo.username != 'alice'"}
    await policy(world, {"expression": "false"}, matchConditions=[condition])
    await write(world)


async def test_expressions_see_the_namespace_and_what_the_caller_may_do(world: World) -> None:
    await policy(
        world,
        {"expression": "namespaceObject.metadata.labels['team'] == 'ci'"},
        {"expression": "!authorizer.group('').resource('pods').namespace('ci').check('get').allowed()"},
    )
    await write(world)


PARAMS = {"paramKind": {"apiVersion": "example.com/v1", "kind": "Limit"}}
LIMITS = resource("limits", group="example.com", kind="Limit")


async def judged(world: World, name: str) -> None:
    obj = {"metadata": {"name": name}}
    attributes = Attributes(CREATE, CONFIG_MAPS, "v1", ALICE, name=name, namespace="ci", obj=obj)
    await plugin(world, LIMITS).validate(attributes)


async def test_parameters_come_from_other_objects(world: World) -> None:
    await policy(
        world,
        {"expression": "params.allowed == object.metadata.name"},
        binding={"paramRef": {"name": "limit", "parameterNotFoundAction": "Deny"}},
        **PARAMS,
    )
    with pytest.raises(StatusError) as refusal:
        await judged(world, "x")
    assert refusal.value.message.endswith(
        "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
    )
    await world.put("limits", "limit", "ci", group="example.com", allowed="x")
    await judged(world, "x")
    with pytest.raises(StatusError, match="failed expression"):
        await judged(world, "y")


async def test_every_selected_parameter_is_evaluated(world: World) -> None:
    reference = {"selector": {"matchLabels": {"on": "yes"}}, "parameterNotFoundAction": "Allow"}
    await policy(
        world,
        {"expression": "object.metadata.name.startsWith(params.prefix)"},
        binding={"paramRef": reference},
        **PARAMS,
    )
    await judged(world, "anything")
    for name, prefix, labels in (("a", "x", {"on": "yes"}), ("b", "xy", {"on": "yes"}), ("c", "z", {})):
        await world.put("limits", name, "ci", group="example.com", prefix=prefix, metadata={"labels": labels})
    await judged(world, "xyz")
    with pytest.raises(StatusError):
        await judged(world, "xz")


async def test_an_unknown_param_kind_fails_closed(world: World) -> None:
    await policy(world, {"expression": "true"}, binding={"paramRef": {"name": "limit"}}, **PARAMS)
    assert "not known" in (await rejected(world)).message
