"""A check for machines with an NVIDIA GPU and no network: correctness, faults, memory and speed.

It needs torch, transformers and numpy. A part is skipped, with a reason, if a package that it needs is not installed.
"""
