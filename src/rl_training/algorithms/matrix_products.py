"""Large matrix products of a compiled update go through oneDNN where MKL is slow.

PyTorch multiplies float32 matrices with MKL, which uses 512-bit vectors on Intel's CPUs alone. On AMD's, which have them too,
oneDNN multiplies twice as fast; PyTorch uses it for convolutions only. Small products stay with MKL, whose calls cost less.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

#: Multiplications from which on a product is faster with oneDNN: 64 rows times a matrix of 128 x 128.
SMALLEST = 1_000_000


@functools.cache
def onednn_is_faster() -> bool:
    """Whether this is a CPU on which MKL does not use all instructions that there are."""
    used = torch._C.has_mkl and torch._C._has_mkldnn
    return used and torch.backends.cpu.get_cpu_capability() == "AVX512" and "AuthenticAMD" in _cpu()


def _cpu() -> str:
    """A text that names the CPU's vendor, if the system tells."""
    try:
        return Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:  # not Linux
        return platform.processor()


def use_onednn(graph: fx.GraphModule) -> int:
    """Replaces the large matrix products of a traced graph on the CPU. Returns their number."""
    aten, replaced = torch.ops.aten, 0
    for node in list(graph.graph.nodes):
        if node.target is aten.mm.default:
            bias, (a, b) = None, node.args
        elif node.target is aten.addmm.default and not node.kwargs and node.args[0].meta["val"].dim() == 1:
            bias, a, b = node.args
        else:
            continue
        left, right = a.meta["val"], b.meta["val"]
        if left.dtype != torch.float32 or left.device.type != "cpu" or left.numel() * right.shape[1] < SMALLEST:
            continue
        with graph.graph.inserting_before(node):
            weight = graph.graph.call_function(aten.t.default, (b,))
            weight.meta["val"] = right.t()
            product = graph.graph.call_function(_compilable(), (a, weight, bias))
            product.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(product)
        graph.graph.erase_node(node)
        replaced += 1
    graph.recompile()
    return replaced


# PyTorch's cache of compiled graphs knows this name, but not our lowering: if that changes, so must the number.
@torch.library.custom_op("rl_training::onednn_linear_1", mutates_args=())
def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias`` by oneDNN."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


@onednn_linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(len(x), len(weight))


@functools.cache
def _compilable() -> Any:
    """The operation, once PyTorch's compiler knows to call oneDNN for it. Its own lowering is for constant weights."""
    from torch._inductor import ir, lowering, mkldnn_ir

    own: Any = mkldnn_ir  # its functions have no types
    operation = torch.ops.rl_training.onednn_linear_1.default

    def dense(weight: Any) -> Any:
        """The weight row by row or column by column: for one with gaps, oneDNN has only a kernel without vectors."""
        weight = ir.ExternKernel.realize_input(weight)
        by_columns = weight.get_stride() == [1, weight.get_size()[0]]
        return weight if by_columns else ir.ExternKernel.require_contiguous(weight)

    @lowering.register_lowering(operation, type_promotion_kind=None)
    def lower(x: Any, weight: Any, bias: Any) -> Any:
        size = [x.get_size()[0], weight.get_size()[0]]
        layout = ir.FixedLayout(device=x.get_device(), dtype=x.get_dtype(), size=size)
        inputs = [ir.ExternKernel.require_contiguous(x), dense(weight)]
        if bias is not None:
            inputs.append(ir.ExternKernel.require_contiguous(bias))
        constants: list[Any] = [*([None] if bias is None else []), "none", [-1], ""]
        kernel = own.LinearUnary(layout=layout, inputs=inputs, constant_args=constants)
        return ir.TensorBox.create(own._create_output_node(kernel))

    return operation
