"""Names of models for clients and for Triton, which forbids the slash."""


def triton_name(name: str) -> str:
    return name.replace("/", "__")


def sie_name(name: str) -> str:
    """
    >>> sie_name("BAAI__bge-m3")
    'BAAI/bge-m3'
    """
    return name.replace("__", "/", 1)
