"""Readers of the files that model libraries save, by the standard library alone: stages import them without torch.

The class method `read` of a class of files raises LoadError, which names the file, and the key, that cannot be used.
"""
