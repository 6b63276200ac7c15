"""PyTorch and transformers: packed attention, our CPU kernels, and the probe that decides who may use them."""
