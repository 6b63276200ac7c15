"""The process that holds a model's weights and computes its forward passes.

The stage that takes requests from Triton must survive a fault in a kernel and a lack of memory: if it died, requests
that it has deferred would never be answered (measured: docs/decisions/processes.md). The computation therefore runs in
a separate process, and the stage starts a replacement if that process dies.
"""
