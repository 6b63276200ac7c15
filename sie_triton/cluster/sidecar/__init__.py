"""The sidecar: fetches work from the queue for the Triton beside it, and answers the gateways."""
