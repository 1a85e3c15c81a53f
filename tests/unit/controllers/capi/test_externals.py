"""How a reference leads to a provider's object, or to what keeps it from doing so."""

from __future__ import annotations

import pytest

from herder.api.capi.contract import Contract
from herder.controllers.capi.externals import look_up
from herder.engine.meta.kinds import Object
from herder.engine.runtime.view import KindNotWatched
from tests.support.views import view_of
from tests.unit.controllers.capi.cluster.herd import CONTROLLER, INFRA, INFRA_REF, cluster, definition, infra, look


@pytest.mark.parametrize("contract", list(Contract))
def test_a_reference_leads_to_the_object_in_the_version_of_its_contract(contract: Contract) -> None:
    found = look_up(look(definition(INFRA, contract), infra()), INFRA_REF, "ns")
    assert found.obj is not None
    assert (found.obj["metadata"]["name"], found.kind, found.contract) == ("c-infra", INFRA, contract)
    assert not found.missing


@pytest.mark.parametrize(
    ("reference", "objects", "missing", "problem"),
    [
        pytest.param(INFRA_REF, [definition(INFRA)], True, "", id="no object"),
        pytest.param(INFRA_REF, [], True, "", id="no such kind"),
        pytest.param(
            INFRA_REF,
            [definition(INFRA, "")],
            False,
            "CustomResourceDefinition farmclusters.infrastructure.example has no version for a supported contract: "
            "label cluster.x-k8s.io/v1beta2 or cluster.x-k8s.io/v1beta1 is not set",
            id="no contract",
        ),
        pytest.param(None, [], False, "the reference names no object", id="no reference"),
        pytest.param({"kind": "FarmCluster"}, [], False, "the reference names no object", id="half a reference"),
    ],
)
def test_a_reference_that_leads_nowhere(
    reference: Object | None, objects: list[Object], missing: bool, problem: str
) -> None:
    found = look_up(look(*objects), reference, "ns")
    assert found.obj is None
    assert (found.missing, found.problem) == (missing, problem)


def test_an_object_of_another_namespace_is_another_object() -> None:
    assert look_up(look(definition(INFRA), infra()), INFRA_REF, "elsewhere").missing


def test_a_kind_that_nobody_follows_yet_is_left_to_the_runtime() -> None:
    view = view_of(CONTROLLER, "ns/c", [cluster(), definition(INFRA)])
    with pytest.raises(KindNotWatched) as raised:
        look_up(view, INFRA_REF, "ns")
    assert raised.value.kind == INFRA
