"""AdmissionReview of NodeDrivers; unlike the others it needs to query the API server."""

from __future__ import annotations

from herder.api.machines.kinds import NODE_DRIVER
from herder.engine.client.client import Client
from herder.engine.meta.errors import BadRequest
from herder.gateway.admission.node_drivers import refusal
from herder.gateway.webhooks.reviews import VALIDATE, answered, hook_name, hook_path, refused, request_of

NAME = hook_name(NODE_DRIVER, VALIDATE)
PATH = hook_path(NODE_DRIVER, VALIDATE)


async def answer(client: Client, body: bytes) -> bytes:
    request = request_of(NODE_DRIVER, PATH, body)
    old, new = request.get("oldObject"), request.get("object")
    if not isinstance(old, dict) or not isinstance(new, dict | None):
        raise BadRequest("request.oldObject: an object is expected, and in request.object an object or null")
    error = await refusal(client, old, new)
    return answered(request, refused(error) if error is not None else {})
