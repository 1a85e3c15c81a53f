"""Machine controller: bootstrap, infrastructure, Node, label sync and ordered deletion."""
