"""Build the OCI images of Herder without a container engine: Debian packages, wheels and Herder as three layers."""
