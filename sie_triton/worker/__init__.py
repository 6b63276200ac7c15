"""The process that holds a model's weights and computes its forward passes.

The stage that takes requests from Triton must not die with them: requests it has deferred would never be
answered (measured in ARCHITECTURE.md). So what can die, by a kernel's fault or the system's lack of memory,
is a process of its own, and the stage starts another.
"""
