"""Container images: found in local archives or pulled from a registry, and unpacked into directories."""
