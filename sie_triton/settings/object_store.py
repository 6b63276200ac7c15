"""URLs of object stores among the settings."""

import re
from pathlib import Path

SCHEMES = ("s3://", "gs://", "file://")

URL = re.compile(r"(?:s3|gs)://[a-z0-9][a-z0-9._-]+(?:/[\w.=/-]*)?|file:///[^?#]*")


def is_store_url(value: object) -> bool:
    """
    >>> is_store_url("s3://bucket/models"), is_store_url("/srv/models")
    (True, False)
    """
    return str(value).startswith(SCHEMES)


def check_store_url(value: str) -> str:
    """Return the URL without a slash at its end; ValueError if it has another form, such as one with credentials.

    >>> check_store_url("s3://bucket/weights/")
    's3://bucket/weights'
    """
    if not URL.fullmatch(value):
        raise ValueError(
            "must be s3://bucket/prefix, gs://bucket/prefix or file:///directory, without credentials, which belong "
            "into environment variables such as AWS_ACCESS_KEY_ID"
        )
    return value.rstrip("/")


def url_of_path(path: Path | None) -> str:
    """Return the URL that was made a path, which loses slashes; empty for other paths.

    >>> url_of_path(Path("s3://bucket/models")), url_of_path(Path("file:///srv/models")), url_of_path(Path("/srv"))
    ('s3://bucket/models', 'file:///srv/models', '')
    """
    scheme, colon, rest = str(path).partition(":/")
    if not colon or f"{scheme}://" not in SCHEMES:
        return ""
    return f"{scheme}:///{rest}" if scheme == "file" else f"{scheme}://{rest}"
