"""PyTorch with one thread: small models wait for threads longer than they compute, above all beside other tests."""

import torch

torch.set_num_threads(1)
