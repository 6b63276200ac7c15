"""Serves many machines as one: a gateway, a queue on NATS JetStream, and a sidecar beside each Triton.

client → gateway → stream of a pool → sidecar → Triton → sidecar → gateway → client
"""
