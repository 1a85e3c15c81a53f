"""Authentication and authorization as data and pure functions: tokens, passwords, kubeconfigs, roles."""
