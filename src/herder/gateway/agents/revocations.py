"""Revocations: bindings and role templates that were deleted or changed in the manager.

The manager revokes their rights in the cluster, but not at once: the agent may be away, and after it has returned, the
manager may need a while to reach the cluster. Until then, the cluster still grants them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator

from herder.api.capi.names import is_deleting
from herder.api.identity import roles
from herder.api.identity.projects import project_key_of_namespace
from herder.api.management.kinds import CLUSTER_BINDING, PROJECT_BINDING, ROLE_TEMPLATE
from herder.engine.client.client import Client
from herder.engine.control.cache import Cache, Change
from herder.engine.control.informer import Informer
from herder.engine.meta.kinds import Object
from herder.engine.wire import User

_META = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
_RULES = ("rules", "roleTemplateNames", "external", "context")

Subject = tuple[str, str]
"""Kind and name."""

EVERYONE: Subject = ("", "")
MAX_SUBJECTS = 1_000
"""Revocations of further subjects of a cluster concern all its users. Some users can create and delete bindings."""


class Revocations:
    """Numbers of the latest revocations, by cluster and subject. A higher number is a later revocation."""

    def __init__(self, client: Client, is_followed: Callable[[str], bool]) -> None:
        """`is_followed` says whether the revocations of a cluster are needed."""
        self._is_followed = is_followed
        self._last = 0
        self._of_templates = 0  # the last one in any role template: it concerns all users of all clusters
        self._of_subjects: defaultdict[str, dict[Subject, int]] = defaultdict(dict)
        self._informers = (
            Informer(client, Cache(CLUSTER_BINDING), self._binding_changed(_of_namespace), transform=_binding),
            Informer(client, Cache(PROJECT_BINDING), self._binding_changed(_of_project), transform=_binding),
            Informer(client, Cache(ROLE_TEMPLATE), self._template_changed),
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers:
                tasks.create_task(informer.run())

    async def ready(self) -> None:
        for informer in self._informers:
            await informer.answered.wait()

    @property
    def last(self) -> int:
        return self._last

    def last_of(self, cluster: str, user: User) -> int:
        """The last revocation that concerns the user in this cluster; 0 if there was none."""
        found = self._of_subjects.get(cluster)
        if not found:
            return self._of_templates
        return max(self._of_templates, *(found.get(each, 0) for each in _subjects_of(user)))

    def forget(self, cluster: str, until: int) -> None:
        """The cluster does not grant what was revoked until then."""
        found = self._of_subjects.pop(cluster, {})
        if later := {subject: number for subject, number in found.items() if number > until}:
            self._of_subjects[cluster] = later

    def _binding_changed(self, cluster_of: Callable[[str], str]) -> Callable[[Change], None]:
        def changed(change: Change) -> None:
            old, new = change.old, change.new
            is_ending = new is None or is_deleting(new)
            if old is None and is_ending:
                old = new  # created and deleted while the watch was interrupted
            elif old is None or is_deleting(old):
                return
            cluster = cluster_of(change.key.namespace)
            if old is None or not self._is_followed(cluster) or not (is_ending or _granted(old) != _granted(new)):
                return
            if not isinstance(subject := roles.subject_of(old), str):
                self._add(cluster, (subject["kind"], subject["name"]))

        return changed

    def _add(self, cluster: str, subject: Subject) -> None:
        self._last += 1
        found = self._of_subjects[cluster]
        found[subject if subject in found or len(found) < MAX_SUBJECTS else EVERYONE] = self._last

    def _template_changed(self, change: Change) -> None:
        old, new = change.old, change.new
        if old is not None and (new is None or any(old.get(each) != new.get(each) for each in _RULES)):
            self._last += 1
            self._of_templates = self._last


def _binding(binding: Object) -> Object:
    """Only what is compared: there can be many bindings."""
    meta = binding["metadata"]
    fields = (*roles.SUBJECT_FIELDS, "roleTemplateName", "clusterName", "projectName")
    kept = {field: binding[field] for field in fields if field in binding}
    return {"metadata": {field: meta[field] for field in _META if field in meta}, **kept}


def _granted(binding: Object | None) -> Object:
    return {field: value for field, value in (binding or {}).items() if field != "metadata"}


def _subjects_of(user: User) -> Iterator[Subject]:
    yield EVERYONE
    yield "User", user.name
    for group in user.groups:
        yield "Group", group


def _of_namespace(namespace: str) -> str:
    return namespace


def _of_project(namespace: str) -> str:
    place = project_key_of_namespace(namespace)
    return place.cluster if place else ""
