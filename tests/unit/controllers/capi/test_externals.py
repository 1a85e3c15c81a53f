"""Lookup of the provider objects that references name."""

from __future__ import annotations

import pytest

from herder.api.capi.contract import Contract
from herder.controllers.capi.cluster.controller import CONTROLLER
from herder.controllers.capi.externals import look_up
from herder.engine.meta.kinds import Object
from herder.engine.runtime.view import KindNotWatched
from tests.support.builders import new_definition
from tests.support.views import view_of
from tests.unit.controllers.capi.cluster.objects import INFRA, INFRA_REF, cluster, infra, new_view


@pytest.mark.parametrize("contract", list(Contract))
def test_reference_resolves_to_the_version_of_its_contract(contract: Contract) -> None:
    found = look_up(new_view(new_definition(INFRA, contract), infra()), INFRA_REF, "ns")
    assert found.obj is not None
    assert (found.obj["metadata"]["name"], found.kind, found.contract) == ("c-infra", INFRA, contract)
    assert not found.missing


@pytest.mark.parametrize(
    ("reference", "objects", "missing", "problem"),
    [
        pytest.param(INFRA_REF, [new_definition(INFRA)], True, "", id="no object"),
        pytest.param(INFRA_REF, [], True, "", id="no such kind"),
        pytest.param(
            INFRA_REF,
            [new_definition(INFRA, "")],
            False,
            "CustomResourceDefinition farmclusters.infrastructure.example has no version for a supported contract: "
            "label cluster.x-k8s.io/v1beta2 or cluster.x-k8s.io/v1beta1 is not set",
            id="no contract",
        ),
        pytest.param(None, [], False, "the reference names no object", id="no reference"),
        pytest.param({"kind": "FarmCluster"}, [], False, "the reference names no object", id="incomplete reference"),
    ],
)
def test_unresolvable_references(reference: Object | None, objects: list[Object], missing: bool, problem: str) -> None:
    found = look_up(new_view(*objects), reference, "ns")
    assert found.obj is None
    assert (found.missing, found.problem) == (missing, problem)


def test_objects_of_other_namespaces_are_not_found() -> None:
    assert look_up(new_view(new_definition(INFRA), infra()), INFRA_REF, "elsewhere").missing


def test_unwatched_kind_is_reported_to_the_runtime() -> None:
    view = view_of(CONTROLLER, "ns/c", [cluster(), new_definition(INFRA)])
    with pytest.raises(KindNotWatched) as raised:
        look_up(view, INFRA_REF, "ns")
    assert raised.value.kind == INFRA
