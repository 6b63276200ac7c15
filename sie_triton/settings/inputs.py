"""Limits of texts, images, sounds and documents before the forward pass; they are part of the server's settings."""

from pydantic import BaseModel, Field

from sie_triton.settings.sources import IN_BYTES, Bytes


class InputSettings(BaseModel):
    """Settings of preprocessing. Field descriptions are the help texts of the command line."""

    preprocessor_workers: int = Field(
        4,
        ge=1,
        le=256,
        description="maximum number of threads of a model that tokenize bulk requests and decode images and sounds; "
        "all models together have one more; further work waits",
    )
    image_workers: int = Field(
        4,
        ge=1,
        le=256,
        description="maximum number of preprocessor_workers that decode images and sounds; half as many PDF pages "
        "are drawn at once",
    )
    max_image_bytes: Bytes = Field(64 * 1024**2, ge=1, description=f"maximum size of an image file, {IN_BYTES}")
    max_image_pixels: int = Field(100_000_000, ge=1, description="maximum pixels of an image")
    max_pages: int = Field(
        100,
        ge=1,
        description="maximum number of pages of a PDF that a request may select",
    )
    max_decoded_bytes: Bytes = Field(
        1_500_000_000,
        ge=1,
        description=f"memory limit for decoding images, {IN_BYTES}; further images wait; one that needs more by "
        "itself (9 to 17 bytes per pixel) is refused",
    )
    max_document_bytes: Bytes = Field(64 * 1024**2, ge=1, description=f"maximum size of a document or PDF, {IN_BYTES}")
    max_audio_bytes: Bytes = Field(64 * 1024**2, ge=1, description=f"maximum size of an audio file, {IN_BYTES}")
    max_audio_s: float = Field(600, gt=0, le=86_400, description="maximum duration of an audio file, in seconds")
