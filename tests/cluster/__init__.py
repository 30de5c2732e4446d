"""A package, so that its Ray ends with its last test: idle, a cluster takes a tenth of a core."""
