"""Large products of compiled updates go through oneDNN where MKL is slow, and stay the same products."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_training.algorithms import matrix_products
from rl_training.algorithms.compiled_graph import CompiledGraph, Groups
from rl_training.algorithms.matrix_products import SMALLEST, THINNEST, is_supported, onednn_is_faster, use_onednn

needs_onednn = pytest.mark.skipif(not is_supported(), reason="PyTorch has no oneDNN, or another version's private functions")
ROWS, INPUTS, GAP, WIDTH = 480, 17, 25, 256


def products(state: Groups, batch: Sequence[Tensor]) -> list[Tensor]:
    """Every kind of product in an update: with and without bias, with either factor transposed, of rows with gaps, and with a
    weight that changes in between."""
    (weight, bias, square), (record,) = state["all"], batch
    x = record[:, :INPUTS]  # a view, as the fields of a replay are
    hidden = torch.addmm(bias, x, weight.t())
    output = hidden @ square.t()
    square.mul_(0.5)
    return [hidden, output, output @ square, output.t() @ hidden, output.t() @ x]


LARGE = 5


def factors(dtype: torch.dtype = torch.float32) -> tuple[dict[str, list[Tensor]], list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    weight, bias, square, record = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        for shape in ((WIDTH, INPUTS), (WIDTH,), (WIDTH, WIDTH), (ROWS, INPUTS + GAP))
    )
    return {"all": [weight, bias, square]}, [record]


def assert_exact(found: Sequence[Tensor], state: Groups) -> None:
    """The products of the same factors in double precision, and the same weights after them."""
    expected_state, batch = factors(torch.float64)
    expected = products(expected_state, batch)
    for number, other in zip([*found, *state["all"]], [*expected, *expected_state["all"]], strict=True):
        torch.testing.assert_close(number.double(), other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


def replaced(graph: torch.fx.GraphModule) -> int:
    """The number of products that oneDNN computes."""
    return sum("onednn_linear" in str(node.target) for node in graph.graph.nodes)


@needs_onednn
def test_the_large_products_are_replaced_and_stay_the_same() -> None:
    state, batch = factors()
    graph = CompiledGraph(products, state).trace(batch)
    assert use_onednn(graph) == replaced(graph) == LARGE
    assert_exact(graph(*state["all"], *batch), state)


def left_alone(function: Any, *factors: Tensor) -> bool:
    graph = CompiledGraph(lambda state, batch: [function(*batch)], {"all": [torch.zeros(1)]}).trace(factors)
    return use_onednn(graph) == replaced(graph) == 0


@needs_onednn
def test_what_is_small_thin_or_not_a_linear_layer_stays() -> None:
    columns = 100
    enough = SMALLEST // columns // THINNEST
    assert not left_alone(torch.mm, torch.zeros(enough, THINNEST), torch.zeros(THINNEST, columns))
    assert left_alone(torch.mm, torch.zeros(enough - 1, THINNEST), torch.zeros(THINNEST, columns))
    for sizes in ((THINNEST - 1, 2048, 2048), (2048, THINNEST - 1, 2048), (2048, 2048, THINNEST - 1)):
        rows, inner, outer = sizes
        assert left_alone(torch.mm, torch.zeros(rows, inner), torch.zeros(inner, outer))
    large = torch.zeros(128, 128)
    assert not left_alone(torch.addmm, torch.zeros(128), large, large.clone())
    assert left_alone(torch.mm, large.double(), large.double())
    for bias in (torch.zeros(1), torch.zeros(128, 128), torch.zeros(1, 128)):
        assert left_alone(torch.addmm, bias, large, large.clone())
    assert left_alone(lambda *three: torch.addmm(*three, alpha=2), torch.zeros(128), large, large.clone())


INTEL, ZEN_4, ZEN_5 = (
    f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 17\n"
    for vendor, family in (("GenuineIntel", 26), ("AuthenticAMD", 25), ("AuthenticAMD", 26))
)


@pytest.mark.parametrize(
    ("cpu", "capability", "variable", "off", "faster"),
    [
        (ZEN_5, "AVX512", None, None, True),
        ("AMD64 Family 26 Model 68 Stepping 0, AuthenticAMD", "AVX512", None, None, True),
        (ZEN_4, "AVX512", None, None, False),
        (INTEL, "AVX512", None, None, False),
        ("", "AVX512", None, None, False),
        (ZEN_5, "AVX2", None, None, False),
        (ZEN_5, "AVX512", "MKL_CBWR", None, False),
        (ZEN_5, "AVX512", "ONEDNN_MAX_CPU_ISA", None, False),
        (ZEN_5, "AVX512", "DNNL_MAX_CPU_ISA", None, False),
        (ZEN_5, "AVX512", None, "the flag", False),
        (ZEN_5, "AVX512", None, "torch._C.has_mkl", False),
        (ZEN_5, "AVX512", None, "torch._C._has_mkldnn", False),
    ],
)
@pytest.mark.filterwarnings("ignore:TF32")  # PyTorch, whenever the flags are set back
@needs_onednn
def test_only_where_mkl_leaves_vectors_unused(
    cpu: str, capability: str, variable: str | None, off: str | None, faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in matrix_products.ASKING:
        monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, "AVX2")
    monkeypatch.setattr(torch._C, "has_mkl", True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(matrix_products, "_cpu", lambda: cpu)
    if off is not None and off.startswith("torch._C"):
        monkeypatch.setattr(off, False)
    with torch.backends.mkldnn.flags(enabled=off != "the flag"):
        assert onednn_is_faster() is faster


@pytest.mark.parametrize("faster", [True, False])
@needs_onednn
def test_a_graph_is_changed_only_where_that_is_faster(faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(matrix_products, "onednn_is_faster", lambda: faster)
    monkeypatch.setattr("torch._inductor.compile", lambda graph, *_: seen.append(replaced(graph)))
    state, batch = factors()
    CompiledGraph(products, state).prepare(batch)
    assert seen == [LARGE if faster else 0]


@pytest.mark.parametrize("version", ["2.12.1", "2.14.0+cpu", "3.13.0"])
def test_another_pytorch_goes_without(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert not is_supported()


@needs_onednn
@pytest.mark.slow  # compiles for ten seconds
def test_the_compiled_products_are_those_of_onednn_with_vectors() -> None:
    """A weight that is neither row-major nor column-major would be left to a kernel that is a hundred times slower."""
    code = (
        "import rl_training.algorithms.compiled_graph as c, test_matrix_products as t\n"
        "t.matrix_products.onednn_is_faster = lambda: True\n"
        "state, batch = t.factors()\n"
        "t.assert_exact(c.CompiledGraph(t.products, state)(batch), state)"
    )
    changes = {"ONEDNN_VERBOSE": "1", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]  # a fresh interpreter: these variables are read when torch is imported
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **changes})
    assert done.returncode == 0, done.stderr
    kernels = re.findall(r"primitive,exec,cpu,inner_product,([^,]+),", done.stdout)
    assert len(kernels) == LARGE
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert not [kernel for kernel in kernels if kernel.startswith("ref")]
