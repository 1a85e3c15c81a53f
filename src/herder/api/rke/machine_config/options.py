"""Validation of one option, for any distribution."""

from __future__ import annotations

from typing import Any

from herder.api.rke.distributions import EMBEDDED, KUBEADM, version_of
from herder.api.rke.machine_config import embedded, kubeadm, rancher


def checked_option(version: str, field: str, option: str, value: Any) -> Any:
    """Return the value as the distribution of `version` takes it, or raise an OptionError that names `field`.

    Options of an unknown distribution are not checked.
    """
    known = version_of(version)
    if known is None:
        return value
    if known.facts == KUBEADM:
        return kubeadm.checked_option(field, option, value)
    if known.facts == EMBEDDED:
        return embedded.checked_option(field, option, value)
    return rancher.checked_argument(known.facts, version, field, option, value)
