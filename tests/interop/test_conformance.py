"""A sample of the conformance specs, chosen for speed; `make soak` runs all that start no pod."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.interop import conformance
from tests.support.embedded import Embedded
from tests.support.engines import Engine

pytestmark = pytest.mark.extended

SAMPLE = (
    "API priority and fairness",
    "AggregatedDiscovery",
    "Discovery should",
    "FieldValidation",
    "Simple CustomResourceDefinition",
    "custom resource defaulting",
    "include custom resource definition resources in discovery",
    "should support (Validating|Mutating)AdmissionPolicy",
    r"Namespaces .*should (apply|patch)",
    "manage the lifecycle of a ResourceQuota",
    "apply changes to a resourcequota status",
    "Table transformation",
    "restart watching from the last resource version",
    "start watching from a specific resource version",
    "find the server version",
    "works for CRD (with|without) validation schema",
)


def test_conformance_specs_pass(tmp_path: Path) -> None:
    with Embedded(tmp_path / "embedded", flags=conformance.FLAGS) as server:
        focus = rf"\[sig-api-machinery\].*({'|'.join(SAMPLE)}).*\[Conformance\]"
        specs = conformance.run(Engine("embedded", server.kubeconfig), focus, tmp_path, minutes=3)
    assert [f"{spec.name}: {spec.failure}" for spec in specs if spec.state != "passed"] == []
    unmatched = [pattern for pattern in SAMPLE if not any(re.search(pattern, spec.name) for spec in specs)]
    assert unmatched == []
