"""Labels, and the words and images in which a model looks for them."""
