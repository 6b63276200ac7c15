"""The three steps of a model in Triton: their rendered repository, their stages, scheduling, and the worker."""
