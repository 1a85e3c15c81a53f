"""The embedded distribution: the embedded API server as a cluster's control plane, and nodes that run no pods."""
