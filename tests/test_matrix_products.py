"""Large products of compiled updates go through oneDNN where MKL is slow, and stay the same products."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from rl_training.algorithms import matrix_products
from rl_training.algorithms.compiled_graph import CompiledGraph, Groups
from rl_training.algorithms.matrix_products import SMALLEST, onednn_is_faster, use_onednn

needs_onednn = pytest.mark.skipif(not torch._C._has_mkldnn, reason="PyTorch was built without oneDNN")
ROWS, INPUTS, GAP, WIDTH = 256, 17, 25, 256


def products(state: Groups, batch: Sequence[Tensor]) -> list[Tensor]:
    """Every kind of product in an update: with and without bias, and with either factor transposed, of rows with gaps."""
    (weight, bias, square), (record,) = state["all"], batch
    x = record[:, :INPUTS]  # a view, as the fields of a replay are
    hidden = torch.addmm(bias, x, weight.t())
    output = hidden @ square.t()
    return [hidden, output, output @ square, output.t() @ hidden, output.t() @ x, output[:, :1] @ square[:1]]


LARGE = 5  # of the six products; the last is too small


def factors(dtype: torch.dtype = torch.float32) -> tuple[dict[str, list[Tensor]], list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    weight, bias, square, record = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        for shape in ((WIDTH, INPUTS), (WIDTH,), (WIDTH, WIDTH), (ROWS, INPUTS + GAP))
    )
    return {"all": [weight, bias, square]}, [record]


def assert_exact(found: Sequence[Tensor]) -> None:
    """The products of the same factors in double precision."""
    for number, expected in zip(found, products(*factors(torch.float64)), strict=True):
        torch.testing.assert_close(number.double(), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@needs_onednn
def test_the_large_products_are_replaced_and_stay_the_same() -> None:
    state, batch = factors()
    graph = CompiledGraph(products, state).trace(batch)
    assert use_onednn(graph) == LARGE
    assert str(graph.graph).count("onednn_linear") >= LARGE
    assert_exact(graph(*state["all"], *batch))


def test_products_in_double_precision_stay() -> None:
    state, batch = factors(torch.float64)
    assert use_onednn(CompiledGraph(products, state).trace(batch)) == 0


def test_the_smallest_product_is_the_first_that_is_replaced() -> None:
    def product(state: Groups, batch: Sequence[Tensor]) -> list[Tensor]:
        return [batch[0] @ state["all"][0]]

    for rows, count in ((SMALLEST // 1000 - 1, 0), (SMALLEST // 1000, 1)):
        graph = CompiledGraph(product, {"all": [torch.zeros(20, 50)]}).trace([torch.zeros(rows, 20)])
        assert use_onednn(graph) == count


@pytest.mark.parametrize(
    ("vendor", "capability", "faster"),
    [
        ("AuthenticAMD", "AVX512", True),
        ("GenuineIntel", "AVX512", False),
        ("AuthenticAMD", "AVX2", False),
        ("", "AVX512", False),
    ],
)
@needs_onednn
def test_only_where_mkl_leaves_instructions_unused(
    vendor: str, capability: str, faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._C, "has_mkl", True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(matrix_products, "_cpu", lambda: f"vendor_id : {vendor}")
    assert onednn_is_faster.__wrapped__() is faster


@needs_onednn
@pytest.mark.slow  # compiles for ten seconds
def test_the_compiled_products_are_those_of_onednn_with_vectors() -> None:
    """A weight with gaps between its rows would be left to a kernel that is a hundred times slower."""
    code = (
        "import rl_training.algorithms.compiled_graph as c, test_matrix_products as t\n"
        "c.onednn_is_faster = lambda: True\n"
        "state, batch = t.factors()\n"
        "t.assert_exact(c.CompiledGraph(t.products, state)(batch))"
    )
    changes = {"ONEDNN_VERBOSE": "1", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]  # a fresh interpreter: these variables are read when torch is imported
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **changes})
    kernels = re.findall(r"primitive,exec,cpu,inner_product,([^,]+),", done.stdout)
    assert len(kernels) == LARGE
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert not [kernel for kernel in kernels if kernel.startswith("ref")]
