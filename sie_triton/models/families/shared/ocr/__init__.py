"""Language models that write down the text of an image."""
