"""The stages that Triton runs: preprocess → inference → postprocess.

    triton                          → request              what Triton calls; the seam to it
    cold_stage, open_requests       → drain_timeout        each request is limited, counted, and answered once
    preprocess                      → tokenizing, preparing, tokenizer_files
    between the stages              → context, message, seal, checks
    inference                       → inference_job, quarantine, loader, pass_reports, busy_log
    LoRA adapters in inference      → lora_cache, cached_lora
    postprocess

The stages use NumPy and the seam `stages.request`; only `stages.triton` uses Triton's Python API. No stage imports
torch or transformers: workers do, when weights are first needed.
"""
