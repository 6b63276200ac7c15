"""What every worker imports before it can load: seconds of work that one process can do for all."""

from sie_triton.engines.torch.openmp import wait_briefly


def import_all() -> None:
    wait_briefly()
    from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, PreTrainedModel  # noqa: F401
    from transformers.models.bert import modeling_bert  # noqa: F401

    import sie_triton.engines.torch.engine  # noqa: F401
