"""Kubernetes Events: `correlator` counts, combines and limits them, `recorder` writes them."""
