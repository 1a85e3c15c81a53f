"""Controllers that turn Rancher's roles and bindings into Kubernetes RBAC, here and in the managed clusters."""
