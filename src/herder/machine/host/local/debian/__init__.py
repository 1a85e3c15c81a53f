"""Build the Debian image of `local` machines, and the layer with the dependencies of Kubernetes."""
