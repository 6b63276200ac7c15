"""The stages that Triton runs: preprocess → inference → postprocess.

The stages use NumPy and the seam `stages.request`; only `stages.triton` uses Triton's Python API. No stage imports
torch or transformers: workers do, when weights are first needed.
"""
