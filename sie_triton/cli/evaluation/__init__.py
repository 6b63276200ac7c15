"""Quality and speed of a model on a dataset: a running server beside other sources and expected values."""
