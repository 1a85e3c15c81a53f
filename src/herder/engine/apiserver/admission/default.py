"""The plug-ins that a server has unless told otherwise, in the order in which they act."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from herder.engine.apiserver.admission.chain import Chain
from herder.engine.apiserver.admission.limit_ranges import LimitRanges
from herder.engine.apiserver.admission.mutating_policies import MutatingPolicies
from herder.engine.apiserver.admission.namespaces import NamespaceLifecycle
from herder.engine.apiserver.admission.objects import Objects
from herder.engine.apiserver.admission.pods import DefaultTolerationSeconds, Priority
from herder.engine.apiserver.admission.policies import ValidatingPolicies
from herder.engine.apiserver.admission.quota import QuotaAdmission, QuotaCounter, QuotaStatus
from herder.engine.apiserver.admission.service_accounts import ServiceAccountAdmission
from herder.engine.apiserver.admission.webhook_client import Resolver, ServiceResolver, WebhookClient
from herder.engine.apiserver.admission.webhooks import MutatingWebhooks, ValidatingWebhooks
from herder.engine.apiserver.auth.escalation import EscalationCheck
from herder.engine.apiserver.auth.rbac import RbacAuthorizer
from herder.engine.apiserver.resources import Registry
from herder.engine.store import Store


class Admission:
    """The default chain, and what must run (`quota_status.run`) and be closed with it."""

    def __init__(
        self,
        store: Store,
        authorizer: RbacAuthorizer,
        registry: Registry,
        *,
        clock: Callable[[], datetime],
        entropy: Callable[[int], bytes],
        resolver: Resolver | None = None,
    ) -> None:
        objects = Objects(store)
        self.client = WebhookClient(resolver or ServiceResolver(objects))
        self.chain = Chain()
        self.chain.add(NamespaceLifecycle(objects))
        self.chain.add(LimitRanges(objects))
        self.chain.add(ServiceAccountAdmission(objects, entropy))
        self.chain.add(Priority(objects))
        self.chain.add(DefaultTolerationSeconds())
        self.chain.add(EscalationCheck(authorizer))
        self.chain.add(MutatingPolicies(objects, registry, authorizer), last=True)
        self.chain.add(MutatingWebhooks(objects, self.client, authorizer=authorizer, entropy=entropy), last=True)
        self.chain.add(ValidatingPolicies(objects, registry, authorizer), last=True)
        self.chain.add(ValidatingWebhooks(objects, self.client, authorizer=authorizer, entropy=entropy), last=True)
        counter = QuotaCounter(objects, clock)
        self.chain.add(QuotaAdmission(counter, clock), last=True)
        self.quota_status = QuotaStatus(store, counter)

    async def close(self) -> None:
        await self.client.close()
