"""Images become directories: found in archives on this node, or pulled from a registry, and unpacked."""
