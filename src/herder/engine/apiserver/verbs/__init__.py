"""One verb of the API in each module. Each takes a `Call` and answers a `Response`, or raises a `StatusError`."""
