"""Who stays in memory: reads the stages' status records, decides, and acts through Triton's load API.

    status records, memory sample → choice (pure) → Triton → status records
    model files → repository → changes → Triton

It keeps nothing that it cannot read again: killed and started anew, it goes on.
"""
