"""Who asks, and what they may do: tokens, passwords, kubeconfigs and roles, as data and pure functions."""
