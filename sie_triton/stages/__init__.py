"""What Triton runs: preprocess → inference → postprocess.

The stages speak numpy and the Request seam below; `stages.triton` alone knows Triton's Python API.
Nothing here imports torch or transformers: an adapter does, when weights are first needed.
"""
