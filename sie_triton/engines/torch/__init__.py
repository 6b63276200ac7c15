"""PyTorch and transformers: packed attention, CPU kernels, and the probe that decides which models can use them."""
