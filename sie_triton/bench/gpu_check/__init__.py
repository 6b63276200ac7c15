"""A check for machines with an NVIDIA GPU and no network: correctness, faults, memory and speed.

It needs torch, transformers and numpy. A part that needs a package which is not installed is skipped, and says so.
"""
