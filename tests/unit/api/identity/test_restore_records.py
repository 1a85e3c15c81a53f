"""Which fields of a control plane's status users may write."""

from __future__ import annotations

from herder.api.identity.restore_records import RECORDS
from herder.api.rke.crds import CONTROL_PLANE_CRD

REPORTED = {"agentConnected", "conditions", "initialization", "initialized", "observedGeneration", "ready"}
"""Fields that only report: nothing that another user restores or loses depends on them."""


def test_each_field_of_the_status_is_reserved_or_only_reports() -> None:
    (version,) = CONTROL_PLANE_CRD["spec"]["versions"]
    fields = set(version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"])
    assert fields == REPORTED | set(RECORDS)
    assert not REPORTED & set(RECORDS)
