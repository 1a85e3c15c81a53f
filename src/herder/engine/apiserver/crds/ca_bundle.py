"""The caBundle of a CRD's conversion webhook."""

from __future__ import annotations

import base64
import re

from herder.engine.meta.kinds import Object

_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----\s(.*?)-----END \1-----", re.DOTALL)


def bundle_of(crd: Object) -> str:
    """Return the caBundle in base64; empty if there is none."""
    webhook = ((crd.get("spec") or {}).get("conversion") or {}).get("webhook") or {}
    return str((webhook.get("clientConfig") or {}).get("caBundle") or "")


def bundle_problem(bundle: str) -> str:
    """Return why the caBundle cannot be used; empty if it can."""
    if not bundle:
        return ""
    blocks = _BLOCK.findall(base64.b64decode(bundle))
    problem = "no valid certificate authority data seen" if blocks else "unable to parse bytes as PEM block"
    for kind, content in blocks:
        if kind == b"CERTIFICATE":
            problem = _certificate_problem(content)
            if not problem:
                return ""
    return f"unable to load root certificates: {problem}"


def _certificate_problem(content: bytes) -> str:
    from cryptography import x509

    try:
        x509.load_der_x509_certificate(base64.b64decode(content))
    except ValueError:
        return "failed to parse certificate: x509: malformed certificate"
    return ""
