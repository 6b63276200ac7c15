"""Fast layers for the CPU: weights prepacked for oneDNN, GELU fused into the product, residual fused with LayerNorm.

PyTorch's own float32 Linear repacks its weight in every call, which dominates small batches, and computes bias, GELU
and residual in separate passes over memory. docs/decisions/kernels.md has measurements.
"""

import inspect

import torch

from sie_triton.engines.torch import cpu_kernels as kernels
from sie_triton.engines.torch.facts import names_in
from sie_triton.engines.torch.process import keep_freed_pages

# (Linear, activation) attributes of feed-forward modules: BERT and RoBERTa, DistilBERT.
FEED_FORWARD = (("dense", "intermediate_act_fn"), ("lin1", "activation"))

# Activations as arguments of oneDNN's operators.
GELU: tuple[str, list[float], str] = ("gelu", [], "none")
PLAIN: tuple[str, list[float], str] = ("none", [], "")


class PrepackedLinear(torch.nn.Module):
    """An nn.Linear for CPU inference only; `gelu` applies the exact GELU to its output."""

    def __init__(self, linear: torch.nn.Linear, *, gelu: bool = False) -> None:
        super().__init__()
        weight = linear.weight.detach().contiguous()
        # A placeholder with the shape, dtype and device that models read; a result computed from it is NaN.
        self.weight = weight.new_full((1, 1), float("nan")).expand(weight.shape)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.has_gelu = gelu

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._computed(inputs, self.bias, GELU if self.has_gelu else PLAIN)

    def product(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the layer's output without the GELU."""
        return self._computed(inputs, self.bias, PLAIN)

    def whole_weight(self) -> torch.Tensor:
        """Return the original weight, [out, in], as the product with the identity."""
        identity = torch.eye(self.weight.shape[1], dtype=self.weight.dtype)
        return self._computed(identity, None, PLAIN).T

    def _computed(
        self, inputs: torch.Tensor, bias: torch.Tensor | None, activation: tuple[str, list[float], str]
    ) -> torch.Tensor:
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self._weight, bias, *activation)
        return output


class ResidualNorm(torch.nn.Module):
    """LayerNorm(dense(hidden_states) + input_tensor), the closing half of a BERT-like block."""

    def __init__(self, block: torch.nn.Module) -> None:
        super().__init__()
        self.dense = PrepackedLinear(block.dense)  # type: ignore[arg-type]
        self.norm = block.LayerNorm

    def forward(self, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        return kernels.add_layer_norm(self.dense(hidden_states), input_tensor.contiguous(), self.norm)  # type: ignore[arg-type]


def lay_out(model: torch.nn.Module) -> None:
    """Lay out the weights of `model` for speed, in memory of this process."""
    weights = next(model.parameters())
    if can_prepack(weights):
        prepack(model)
        keep_freed_pages()
    if weights.device.type == "cpu":
        own_pages(model)


def own_pages(model: torch.nn.Module) -> None:
    """Copy weights mapped from a file, so that changes of it have no effect and their memory is counted and freed."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def can_prepack(parameter: torch.Tensor) -> bool:
    """Return whether PyTorch has oneDNN, and oneDNN supports the weights on this CPU."""
    has_onednn = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    if parameter.device.type != "cpu" or not has_onednn or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return parameter.dtype == torch.float32 or (parameter.dtype == torch.bfloat16 and _has_bfloat16())


def _has_bfloat16() -> bool:
    """Return whether oneDNN has bfloat16 kernels for this CPU; they need AVX-512 or AVX-NE-CONVERT."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@torch.inference_mode()
def prepack(module: torch.nn.Module) -> None:
    """Replace every Linear below `module`, in place; the original weights are freed."""
    for linear_name, activation_name in FEED_FORWARD:
        linear, activation = getattr(module, linear_name, None), getattr(module, activation_name, None)
        if isinstance(linear, torch.nn.Linear) and _is_exact_gelu(activation):
            setattr(module, linear_name, PrepackedLinear(linear, gelu=True))
            setattr(module, activation_name, torch.nn.Identity())
    for name, child in module.named_children():
        if _is_residual_norm(child):
            setattr(module, name, ResidualNorm(child))
        elif isinstance(child, torch.nn.Linear):
            setattr(module, name, PrepackedLinear(child))
        elif not isinstance(child, torch.nn.MultiheadAttention):  # which reads the weights of its layers itself
            prepack(child)


def _is_exact_gelu(activation: object) -> bool:
    if isinstance(activation, torch.nn.GELU):
        return activation.approximate == "none"
    return type(activation).__name__ == "GELUActivation" and "erf" not in vars(activation)


def _is_residual_norm(module: torch.nn.Module) -> bool:
    """Return whether the parts and the signature of the module are those of BertOutput and its many copies."""
    if {name for name, _ in module.named_children()} != {"dense", "LayerNorm", "dropout"}:
        return False
    norm, signature = module.LayerNorm, inspect.signature(module.forward).parameters
    return (
        list(signature) == ["hidden_states", "input_tensor"]
        and "LayerNorm" in names_in(type(module).forward)
        and isinstance(module.dense, torch.nn.Linear)
        and isinstance(norm, torch.nn.LayerNorm)
        and norm.elementwise_affine
        and norm.bias is not None
        and kernels.takes(norm.weight)
        and kernels.is_built()
    )
