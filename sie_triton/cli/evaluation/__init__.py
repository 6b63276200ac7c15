"""Quality and speed of a model on a dataset: a running server compared with other sources and expected values."""
