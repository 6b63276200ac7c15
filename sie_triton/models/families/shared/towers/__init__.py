"""Two transformers with one embedding space: one for texts, one for images."""
