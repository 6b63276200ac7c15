"""Fault on the path of a worker under test: a pass with this token in it never ends."""

import sys

POISON = 7592  # "hello"

if any(argument.startswith("sie_triton.pipeline.worker") for argument in sys.orig_argv):
    import sie_triton.models.families

    load_adapter = sie_triton.models.families.load_adapter

    def load_poisoned(*args):
        adapter = load_adapter(*args)
        forward = adapter.forward

        def endless(batch):
            while POISON in batch.features["input_ids"].values:
                pass
            return forward(batch)

        adapter.forward = endless
        return adapter

    sie_triton.models.families.load_adapter = load_poisoned
