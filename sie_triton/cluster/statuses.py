"""Statuses of answers: gRPC's status codes (https://grpc.io/docs/guides/status-codes)."""

OK, CANCELLED, INVALID, DEADLINE_EXCEEDED, NOT_FOUND, INTERNAL, UNAVAILABLE = 0, 1, 3, 4, 5, 13, 14
