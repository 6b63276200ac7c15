"""Metrics of the config service, on its own port."""

from prometheus_client import CollectorRegistry, Counter, Gauge

REGISTRY = CollectorRegistry()

EPOCH = Gauge("sie_config_epoch", "Number of the latest change of a model file.", registry=REGISTRY)
FILES = Gauge("sie_config_model_files", "Model files of the cluster.", registry=REGISTRY)
CHANGES = Counter("sie_config_changes", "Changes that this process has made.", registry=REGISTRY)
