"""The `herder-machine` CLI, compatible with rancher-machine; each group of commands is a module, imported on use."""
