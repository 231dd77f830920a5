"""Large matrix products of a compiled update go through oneDNN on CPUs on which MKL is slow.

For products in float32, PyTorch calls MKL, which uses 512-bit vectors only on Intel CPUs. AMD CPUs have units of that width
since Zen 5. There, oneDNN, which PyTorch uses in float32 mainly for convolutions and LSTMs, multiplies nearly twice as fast.
Small products stay with MKL, which has less overhead per call.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

#: Products with fewer multiply-adds than this, or with a dimension below that, are no faster with oneDNN.
SMALLEST, THINNEST = 2_000_000, 16
#: The first family of AMD CPUs with vector units of 512 bits: Zen 5.
ZEN_5 = 26
#: Variables with which a user asks for certain kernels; whoever sets one gets PyTorch's own choice.
ASKING = ("MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
#: The PyTorch whose private functions this module was written for and tested with.
WRITTEN_FOR = (2, 13)


def is_supported() -> bool:
    """Whether this PyTorch has oneDNN, and the private functions through which a compiled graph calls it."""
    version = tuple(int(number) for number in torch.__version__.split(".")[:2])
    return torch._C._has_mkldnn and version == WRITTEN_FOR


def onednn_is_faster() -> bool:
    """Whether this CPU has wider vectors than MKL uses on it. Nothing is measured, so every run decides alike."""
    if not is_supported() or not torch._C.has_mkl or not torch.backends.mkldnn.enabled:
        return False
    asked = any(name in os.environ for name in ASKING)
    return not asked and torch.backends.cpu.get_cpu_capability() == "AVX512" and _amd_family(_cpu()) >= ZEN_5


def _amd_family(description: str) -> int:
    """The family of an AMD CPU, from the system's description; 0 for others."""
    family = re.search(r"cpu family\s*: (\d+)|Family (\d+)", description)
    return int(family.group(1) or family.group(2)) if family and "AuthenticAMD" in description else 0


def _cpu() -> str:
    """The system's description of the CPU."""
    try:
        return Path("/proc/cpuinfo").read_text("utf-8", errors="replace")
    except OSError:  # not Linux
        return platform.processor()


def use_onednn(graph: fx.GraphModule) -> int:
    """Replaces the large matrix products of a traced graph on the CPU. Returns their number."""
    aten, replaced = torch.ops.aten, 0
    for node in list(graph.graph.nodes):
        if node.target is aten.mm.default:
            bias, (a, b) = None, node.args
        elif node.target is aten.addmm.default and not node.kwargs:
            bias, a, b = node.args
        else:
            continue
        left, right = a.meta["val"], b.meta["val"]
        columns = right.shape[1]
        large = left.numel() * columns >= SMALLEST and min(*left.shape, columns) >= THINNEST
        plain = left.dtype == torch.float32 and left.device.type == "cpu"
        if not (large and plain and (bias is None or bias.meta["val"].shape == (columns,))):
            continue
        with graph.graph.inserting_before(node):
            weight = graph.graph.call_function(aten.t.default, (b,))
            weight.meta["val"] = right.t()
            product = graph.graph.call_function(_operation(), (a, weight, bias))
            product.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(product)
        graph.graph.erase_node(node)
        replaced += 1
    graph.recompile()
    return replaced


@functools.cache
def _operation() -> Any:
    """``x @ weight.T + bias`` by oneDNN, as an operation that PyTorch's compiler can call; its own lowering of that is for
    constant weights."""
    from torch._inductor import ir, lowering, mkldnn_ir

    own: Any = mkldnn_ir  # its functions have no types
    # PyTorch keeps compiled graphs by the names of their operations, so the name changes with this file.
    name = f"rl_training::onednn_linear_{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]}"

    @torch.library.custom_op(name, mutates_args=(), schema="(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
    def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return product

    @linear.register_fake
    def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return x.new_empty(len(x), len(weight))

    def dense(weight: Any) -> Any:
        """The weight in row-major or column-major order: for any other, oneDNN has only its unvectorised reference kernel."""
        weight = ir.ExternKernel.realize_input(weight)
        column_major = weight.get_stride() == [1, weight.get_size()[0]]
        return weight if column_major else ir.ExternKernel.require_contiguous(weight)

    operation = linear._opoverload

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
