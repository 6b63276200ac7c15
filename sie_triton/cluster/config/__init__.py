"""The config service: one place from which all workers of a cluster get their model files."""
