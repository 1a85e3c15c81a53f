"""The `herder-machine` command: rancher-machine's words. Each group of words is a module, loaded when it is used."""
