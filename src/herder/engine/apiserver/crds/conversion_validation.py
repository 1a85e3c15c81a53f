"""Validate spec.conversion of a CustomResourceDefinition."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from herder.engine.meta import names
from herder.engine.meta.errors import FieldError, forbidden_field, invalid_value, not_supported, required
from herder.engine.meta.kinds import Object

_URL_FORMAT = "; desired format: https://host[/path]"
_REVIEW_VERSIONS = ("v1", "v1beta1")


def check_conversion(conversion: Object | None, path: str) -> Iterator[FieldError]:
    """Validate spec.conversion."""
    if conversion is None:
        return
    strategy = conversion.get("strategy") or ""
    if not strategy:
        yield required(f"{path}.strategy")
    elif strategy not in {"None", "Webhook"}:
        yield not_supported(f"{path}.strategy", strategy, ("None", "Webhook"))
    webhook: Object = conversion.get("webhook") or {}
    config = webhook.get("clientConfig")
    review_versions: list[str] = webhook.get("conversionReviewVersions") or []
    if strategy == "Webhook":
        yield from _check_client(config, f"{path}.webhookClientConfig")
        yield from _check_review_versions(review_versions, f"{path}.conversionReviewVersions")
        return
    if config is not None:
        yield forbidden_field(f"{path}.webhookClientConfig", "should not be set when strategy is not set to Webhook")
    if review_versions:
        yield forbidden_field(
            f"{path}.conversionReviewVersions", "should not be set when strategy is not set to Webhook"
        )


def _check_client(config: Object | None, path: str) -> Iterator[FieldError]:
    if config is None:
        yield required(path, "required when strategy is set to Webhook")
    elif (config.get("url") is None) == (config.get("service") is None):
        yield required(path, "exactly one of url or service is required")
    elif config.get("url") is not None:
        yield from _check_url(config["url"], f"{path}.url")
    else:
        yield from _check_service(config["service"], f"{path}.service")


def _check_url(url: str, path: str) -> Iterator[FieldError]:
    try:
        parts = urlsplit(url)
    except ValueError as problem:
        yield required(path, f"url must be a valid URL: {problem}{_URL_FORMAT}")
        return
    user, at, host = parts.netloc.rpartition("@")
    if parts.scheme != "https":
        yield invalid_value(path, parts.scheme, f"'https' is the only allowed URL scheme{_URL_FORMAT}")
    if not host:
        yield invalid_value(path, host, f"host must be specified{_URL_FORMAT}")
    if at:
        yield invalid_value(path, user.partition(":")[0], "user information is not permitted in the URL")
    if parts.fragment:
        yield invalid_value(path, parts.fragment, "fragments are not permitted in the URL")
    if parts.query:
        yield invalid_value(path, parts.query, "query parameters are not permitted in the URL")


def _check_service(service: Object, path: str) -> Iterator[FieldError]:
    for field in ("name", "namespace"):
        if not service.get(field):
            yield required(f"{path}.{field}")
    port = service.get("port", 443)
    if not 1 <= port <= 65535:
        yield invalid_value(f"{path}.port", port, "port is not valid: must be between 1 and 65535, inclusive")
    url_path = service.get("path") or ""
    if url_path in {"", "/"}:
        return
    if url_path == "//":
        yield invalid_value(f"{path}.path", url_path, "segment[0] may not be empty")
        return
    if not url_path.startswith("/"):
        yield invalid_value(f"{path}.path", url_path, "must start with a '/'")
    for index, step in enumerate(url_path[1:].removesuffix("/").split("/")):
        problems = names.dns1123_subdomain(step) if step else []
        if not step:
            yield invalid_value(f"{path}.path", url_path, f"segment[{index}] may not be empty")
        for problem in problems:
            yield invalid_value(f"{path}.path", url_path, f"segment[{index}]: {problem}")


def _check_review_versions(versions: list[str], path: str) -> Iterator[FieldError]:
    if not versions:
        yield required(path)
        return
    for index, version in enumerate(versions):
        if version in versions[:index]:
            yield invalid_value(f"{path}[{index}]", version, "duplicate version")
            continue
        for problem in names.dns1035_label(version):
            yield invalid_value(f"{path}[{index}]", version, problem)
    if not any(version in _REVIEW_VERSIONS for version in versions):
        yield invalid_value(path, versions, f"must include at least one of {', '.join(_REVIEW_VERSIONS)}")
