"""Models: which there are, where their files come from, how inputs become features, and how each family computes."""
