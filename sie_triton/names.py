"""Names of models: SIE's `org/name`, and Triton's `org__name`, because Triton forbids the slash."""


def triton_name(model: str) -> str:
    """Return the model's name in Triton.

    >>> triton_name("BAAI/bge-m3")
    'BAAI__bge-m3'
    """
    return model.replace("/", "__")


def sie_name(name: str) -> str:
    """Return the model's name in SIE.

    >>> sie_name("BAAI__bge-m3")
    'BAAI/bge-m3'
    """
    return name.replace("__", "/", 1)
