# ruff: noqa: E501 — many short requests to a line read better than one field a line
"""Paths and methods that do not exist."""

from __future__ import annotations

from tests.fuzz.server_pair import CONFIG_MAPS, CORE, DEFINITIONS, DEPLOYMENTS, GROUP, PODS, SERVICES, WIDGETS
from tests.fuzz.wire import Input

_READ = [
    "/nope", "/nope/", "//", "/..", "/api/..", "/api/v1/../v1/namespaces", "/%2e%2e/api", "/api/v1/%2e%2e",
    "/api/v2", "/api/v2/", "/api/v1/", "/api/", "/apis/", "/apis/apps", "/apis/apps/", "/apis/apps/v1/", "/apis/apps/v9",
    "/apis/apps/v9/deployments", "/apis/nope.example.com", "/apis/nope.example.com/v1", "/apis/nope.example.com/v1/things",
    "/apis/nope.example.com/v1/namespaces/fuzz/things/x", f"/apis/{GROUP}", f"/apis/{GROUP}/v1", f"/apis/{GROUP}/v2",
    f"/apis/{GROUP}/v2/widgets", f"/apis/{GROUP}/v1/gadgets", f"/apis/{GROUP}/v1/widgets/standing",
    f"/apis/{GROUP}/v1/namespaces/fuzz", f"/apis/{GROUP}/v1/namespaces/fuzz/gadgets", f"/apis/{GROUP}/v1/WIDGETS",
    f"{WIDGETS}/nope", f"{WIDGETS}/standing/nope", f"{WIDGETS}/standing/status/more", f"{WIDGETS}/standing/scale/more",
    f"{WIDGETS}/standing/log", f"{WIDGETS}/", f"{WIDGETS}/standing/", f"/apis/{GROUP}/v1/widget", f"/apis/{GROUP}/v1//widgets",
    "/api/v1/pods/standing", "/api/v1/configmap", "/api/v1/ConfigMaps", "/api/v1/nopes", "/api/v1/nopes/x", "/api/v1//pods",
    "/api//v1/pods", "//api/v1/pods", "/api/v1/pods/", "/api/v1/namespaces/fuzz/", "/api/v1/namespaces/nope",
    "/api/v1/namespaces/nope/configmaps", "/api/v1/namespaces/nope/configmaps/x", "/api/v1/namespaces/UPPER/configmaps",
    "/api/v1/namespaces//configmaps", "/api/v1/namespaces/fuzz/namespaces", "/api/v1/namespaces/fuzz/nodes",
    "/api/v1/namespaces/fuzz/nodes/x", "/api/v1/namespaces/fuzz/finalize", "/api/v1/namespaces/fuzz/status",
    "/api/v1/namespaces/fuzz/nope/x/y/z", "/api/v1/nodes/nope", "/api/v1/nodes/nope/status", "/api/v1/nodes/nope/proxy/x",
    f"{CONFIG_MAPS}/nope", f"{CONFIG_MAPS}/standing/status", f"{CONFIG_MAPS}/standing/scale", f"{CONFIG_MAPS}/a/b/c/d/e",
    f"{CONFIG_MAPS}/UPPER", f"{CONFIG_MAPS}/..", f"{CONFIG_MAPS}/%2e%2e", f"{CONFIG_MAPS}/.", f"{CONFIG_MAPS}/a%2Fb",
    f"{CONFIG_MAPS}/a%20b", f"{CONFIG_MAPS}/%00", f"{CONFIG_MAPS}/%ff%fe", f"{CONFIG_MAPS}/{'x' * 300}",
    f"{CONFIG_MAPS}/{'x' * 4000}", f"{CONFIG_MAPS}/%F0%9F%92%A5", f"{CONFIG_MAPS}/+", f"{CONFIG_MAPS}/a;b=c", f"{CONFIG_MAPS}/%25",
    f"{CONFIG_MAPS}//standing", f"{CONFIG_MAPS}/%zz", f"{CONFIG_MAPS}/%", f"{CONFIG_MAPS}/%4", "/%zz", "/api/v1/%zz?x=%zz",
    f"{PODS}/nope/log", f"{PODS}/nope/exec", f"{PODS}/standing/nope", f"{PODS}/standing/status/x", f"{PODS}/nope/status",
    f"{PODS}/standing/eviction", f"{PODS}/standing/binding", f"{SERVICES}/nope/proxy", f"{DEPLOYMENTS}/nope/scale",
    f"{DEPLOYMENTS}/nope/status", f"{DEPLOYMENTS}/standing/rollback", f"{DEFINITIONS}/nope", f"{DEFINITIONS}/nope/status",
    "/apis/apiextensions.k8s.io/v1/namespaces/fuzz/customresourcedefinitions", "/apis/apiextensions.k8s.io/v1beta1",
    "/api/v1/watch", "/api/v1/watch/", "/api/v1/watch/nopes", "/api/v1/watch/namespaces/fuzz/nopes",
    "/api/v1/proxy/nodes/x", "/openapi", "/openapi/v4", "/openapi/v3/apis/nope/v1", "/openapi/v2/x", "/version/x",
    "/healthz/nope", "/readyz/nope", "/livez/nope", "/metrics/x", "/logs/x", "/.well-known/nope", "/apis/authorization.k8s.io/v1",
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "/apis/authorization.k8s.io/v1/subjectaccessreviews/x",
    "/apis/authentication.k8s.io/v1/tokenreviews", "/api/v1/componentstatuses/nope", "/api/v1/bindings",
    f"{CORE}/serviceaccounts/default/token", f"{CORE}/serviceaccounts/nope/token", "/apis/autoscaling/v1/scales",
]  # fmt: skip

_METHODS: list[tuple[str, str]] = [
    *[(method, "/api") for method in ("POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "NOPE")],
    *[(method, "/version") for method in ("POST", "PUT", "DELETE", "HEAD")],
    *[(method, "/healthz") for method in ("POST", "DELETE", "HEAD")],
    *[(method, "/apis/apps") for method in ("POST", "DELETE", "HEAD")],
    *[(method, "/apis/apps/v1") for method in ("POST", "DELETE", "HEAD")],
    *[(method, "/openapi/v2") for method in ("POST", "HEAD")],
    *[(method, "/nope") for method in ("POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "NOPE")],
    *[(method, CONFIG_MAPS) for method in ("PUT", "PATCH", "HEAD", "OPTIONS", "TRACE", "NOPE", "post", "get", "CONNECT")],
    *[(method, "/api/v1/configmaps") for method in ("POST", "PUT", "PATCH", "DELETE", "HEAD")],
    *[(method, f"{CONFIG_MAPS}/standing") for method in ("POST", "HEAD", "OPTIONS", "NOPE")],
    *[(method, WIDGETS) for method in ("PUT", "PATCH", "HEAD", "OPTIONS", "TRACE", "NOPE", "get")],
    *[(method, f"{WIDGETS}/standing") for method in ("POST", "HEAD", "OPTIONS", "NOPE")],
    *[(method, f"{WIDGETS}/standing/status") for method in ("POST", "DELETE", "HEAD")],
    *[(method, f"{WIDGETS}/standing/scale") for method in ("POST", "DELETE")],
    *[(method, f"/apis/{GROUP}/v1/widgets") for method in ("POST", "PUT", "PATCH", "DELETE", "HEAD")],
    *[(method, "/api/v1/nopes") for method in ("POST", "PUT", "PATCH", "DELETE", "HEAD")],
    *[(method, f"{CORE}/nopes/x") for method in ("PUT", "PATCH", "DELETE")],
    *[(method, f"/apis/{GROUP}/v1/gadgets") for method in ("POST", "DELETE", "PUT")],
    *[(method, "/api/v1/namespaces/nope") for method in ("PUT", "PATCH", "DELETE", "POST")],
    *[(method, "/api/v1/namespaces") for method in ("PUT", "PATCH", "DELETE")],
    *[(method, f"{PODS}/nope") for method in ("PUT", "PATCH", "DELETE")],
    *[(method, f"{PODS}/nope/binding") for method in ("GET", "PUT", "DELETE")],
    *[(method, f"{PODS}/nope/eviction") for method in ("GET", "PUT", "DELETE")],
    *[(method, "/apis/authorization.k8s.io/v1/subjectaccessreviews") for method in ("PUT", "PATCH", "DELETE", "HEAD")],
    *[(method, f"{CORE}/serviceaccounts/default/token") for method in ("PUT", "DELETE", "PATCH")],
]  # fmt: skip

CASES = [Input(f"url: GET {url[:90]} {len(url)}", "GET", url) for url in _READ]
CASES += [Input(f"url: {method} {url}", method, url) for method, url in _METHODS]
