"""Default admission plugins, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from herder.engine.apiserver.admission.chain import Chain
from herder.engine.apiserver.admission.evaluation import Evaluation
from herder.engine.apiserver.admission.limit_ranges import LimitRanges
from herder.engine.apiserver.admission.namespaces import NamespaceLifecycle
from herder.engine.apiserver.admission.objects import Objects
from herder.engine.apiserver.admission.pods import DefaultTolerationSeconds, Priority
from herder.engine.apiserver.admission.policies.mutating import MutatingPolicies
from herder.engine.apiserver.admission.policies.validating import ValidatingPolicies
from herder.engine.apiserver.admission.quota import QuotaAdmission, QuotaCounter, QuotaStatus
from herder.engine.apiserver.admission.service_accounts import ServiceAccountAdmission
from herder.engine.apiserver.admission.webhooks.client import Resolver, ServiceResolver, WebhookClient
from herder.engine.apiserver.admission.webhooks.plugin import MutatingWebhooks, ValidatingWebhooks
from herder.engine.apiserver.auth.escalation import EscalationCheck
from herder.engine.apiserver.auth.rbac import RbacAuthorizer
from herder.engine.apiserver.compute import ComputeExecutor, InlineExecutor
from herder.engine.apiserver.registry.resources import Registry
from herder.engine.store import Store


class Admission:
    """The default admission chain, its quota status controller (`quota_status.run`) and its webhook client."""

    def __init__(
        self,
        store: Store,
        authorizer: RbacAuthorizer,
        registry: Registry,
        *,
        clock: Callable[[], datetime],
        entropy: Callable[[int], bytes],
        resolver: Resolver | None = None,
        may_dial: Callable[[str], bool] | None = None,
        executor: ComputeExecutor | None = None,
    ) -> None:
        objects = Objects(store)
        self.client = WebhookClient(resolver or ServiceResolver(objects), may_dial)
        evaluation = Evaluation(executor or InlineExecutor())
        self.chain = Chain()
        self.chain.add(NamespaceLifecycle(objects))
        self.chain.add(LimitRanges(objects))
        self.chain.add(ServiceAccountAdmission(objects, entropy))
        self.chain.add(Priority(objects))
        self.chain.add(DefaultTolerationSeconds())
        self.chain.add(EscalationCheck(authorizer))
        self.chain.add(MutatingPolicies(objects, registry, authorizer, evaluation), last=True)
        self.chain.add(
            MutatingWebhooks(objects, self.client, authorizer=authorizer, entropy=entropy, evaluation=evaluation),
            last=True,
        )
        self.chain.add(ValidatingPolicies(objects, registry, authorizer, evaluation), last=True)
        self.chain.add(
            ValidatingWebhooks(objects, self.client, authorizer=authorizer, entropy=entropy, evaluation=evaluation),
            last=True,
        )
        counter = QuotaCounter(objects, clock)
        self.chain.add(QuotaAdmission(counter, clock), last=True)
        self.quota_status = QuotaStatus(store, counter)

    async def close(self) -> None:
        await self.client.close()
