"""The stages that Triton runs: preprocess → inference → postprocess.

    triton                          → request              what Triton calls; the seam to it
    cold_stage, open_requests                              each request is limited, counted, and answered once
    preprocess                      → preparing, tokenizer_files
    between the stages              → context, message, checks
    inference                       → inference_job, loader, pass_reports
    LoRA adapters in inference      → lora_cache
    postprocess

The stages use NumPy and the seam `stages.request`; only `stages.triton` uses Triton's Python API. No stage imports
torch or transformers: workers do, when weights are first needed.
"""
