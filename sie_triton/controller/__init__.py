"""The controller: choose the models that stay in memory, by status records, and act through Triton's load API.

    status records, memory sample → choice (pure) → Triton, and PID.grant beside the records
    model files → repository → changes → Triton

The controller keeps no state that it cannot read again: after a restart it continues.
"""
