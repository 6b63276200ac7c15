"""Settings of requests in progress and of batches; they are part of the server's settings."""

from pydantic import BaseModel, Field


class BatchSettings(BaseModel):
    """Settings of requests and batches. Field descriptions are the help texts of the command line."""

    max_concurrent_requests: int = Field(
        512,
        ge=1,
        le=1_000_000,
        description="maximum number of requests in progress; further ones are refused at once",
    )
    max_requests_per_model: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="maximum number of requests in progress per model; further ones are refused at once; 0: no limit",
    )
    max_batch_requests: int = Field(
        64,
        ge=1,
        le=4096,
        description="maximum number of requests whose items share a forward pass, and in a batch of Triton's; further "
        "ones wait",
    )
    max_batch_wait_ms: float = Field(
        0,
        ge=0,
        le=10_000,
        description="maximum wait of Triton for a full batch, in milliseconds, even while the device is idle",
    )
    max_sub_batch_cost: int = Field(
        0,
        ge=0,
        description="maximum cost of a sub-batch, about one for each token; 0: calibrated",
    )
