"""Settings of logs, traces and details of forward passes; they are part of the server's settings."""

from pydantic import BaseModel, Field

from sie_triton.system.telemetry.options import Telemetry


class TelemetrySettings(BaseModel):
    """Settings of telemetry. Field descriptions are the help texts of the command line."""

    log_json: bool = Field(
        False,
        description="write all logs as JSON lines, also to standard output",
    )
    log_requests: bool = Field(False, description="write a log line about each request; default with log_json: true")
    log_slow_ms: float = Field(
        0, ge=0, description="write a log line about each request that takes longer, in milliseconds; 0: none"
    )
    tracing_enabled: bool = Field(
        False,
        description="send traces of requests by OpenTelemetry, which its own variables (OTEL_…) configure",
    )
    instrumentation: bool = Field(
        False,
        description="write details of each forward pass below data_dir, for `sie-triton top`",
    )

    @property
    def telemetry(self) -> Telemetry:
        """Settings of logs and traces, which every process reads from its environment."""
        of_requests = self.log_requests or (self.log_json and "log_requests" not in self.model_fields_set)
        return Telemetry(self.log_json, of_requests, self.log_slow_ms, self.tracing_enabled, self.instrumentation)
