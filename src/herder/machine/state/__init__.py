"""What is remembered of machines, in rancher-machine's own format: in a Secret, or in a directory."""
