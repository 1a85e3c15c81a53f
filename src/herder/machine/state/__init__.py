"""Machine state in rancher-machine's format, in a Secret or a directory."""
