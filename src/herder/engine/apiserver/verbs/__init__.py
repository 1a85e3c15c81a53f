"""API verbs, one module each. A verb takes a `RequestContext`, and returns a `Response` or raises a `StatusError`.

`write_path` holds what create, update, patch and the subresources share.
"""
