"""Adam (Kingma & Ba, arXiv:1412.6980) on one flat parameter vector.

A small network spends more time on per-tensor overhead than on arithmetic. Therefore all parameters of a module become views
of one vector, and so do their gradients: clipping, Adam and a target update then take a few operations at any depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from rl_training.models.encoder import widest_float
from rl_training.types import State

T = TypeVar("T")


def flatten_parameters(module: nn.Module) -> Tensor:
    """Moves a module's parameters into one vector, replaces them by views of it, and returns it."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
    place_parameters(module, flat)
    return flat


def place_parameters(module: nn.Module, flat: Tensor) -> None:
    """Makes a module's parameters views of this vector, which may belong to another module."""
    parameters = list(module.parameters())
    for parameter, view in zip(parameters, _split_like(flat, parameters), strict=True):
        parameter.data = view


def _split_like(flat: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    parts = torch.split(flat, [parameter.numel() for parameter in parameters])
    return [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]


class FlatAdam:
    """``step(losses, learning_rate)`` computes the gradient, clips it to a global norm and applies Adam."""

    def __init__(
        self, module: nn.Module, *, eps: float = 1e-8, betas: tuple[float, float] = (0.9, 0.999), max_norm: float | None
    ) -> None:
        self.module = module
        self.parameters = flatten_parameters(module)
        self.gradient = torch.zeros_like(self.parameters)
        owners = list(module.parameters())
        for parameter, view in zip(owners, _split_like(self.gradient, owners), strict=True):
            parameter.grad = view  # backward() adds into it
        self._eps, self._betas, self._max_norm = eps, betas, max_norm
        self._mean = torch.zeros_like(self.parameters)
        self._square = torch.zeros_like(self.parameters)
        self._share = torch.empty(0)
        self._steps = torch.zeros((), dtype=torch.float32, device=self.parameters.device)

    def step(self, losses: Tensor, learning_rate: float, share: Tensor | None = None) -> None:
        """One gradient step on the mean of ``losses``, or on their sum weighted by ``share``."""
        self.gradient.zero_()
        if share is None:
            share = self._share
            if share.shape != losses.shape:  # gives the gradient of the mean without computing the mean
                share = self._share = torch.full_like(losses, 1.0 / losses.numel(), requires_grad=False)
        # losses.backward(share) ends up calling this; a direct call skips checks that take 1/12 of a small update's time.
        torch.autograd.Variable._execution_engine.run_backward(
            (losses,), (share,), False, False, (), allow_unreachable=True, accumulate_grad=True
        )
        if self._max_norm is not None:
            self._clip(self._max_norm)
        self._steps.add_(1.0)
        # torch.optim.Adam(fused=True) ends up calling this; a direct call saves 0.1 ms of bookkeeping.
        torch._fused_adam_(
            [self.parameters],
            [self.gradient],
            [self._mean],
            [self._square],
            [],
            [self._steps],
            lr=learning_rate,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
        )

    def _clip(self, max_norm: float) -> None:
        norm = torch.linalg.vector_norm(self.gradient)
        if self.gradient.device.type == "cpu" and float(norm) <= max_norm:  # on other devices, reading the norm would block
            return
        self.gradient.mul_((max_norm / (norm + 1e-6)).clamp_(max=1.0))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Everything that a step changes."""
        return self.parameters, self._mean, self._square, self._steps

    def traced_step(self, tensors: Sequence[Tensor], loss: Callable[[Tensor], tuple[Tensor, T]], learning_rate: Tensor) -> T:
        """``step`` in operations that a compiler can fuse. ``loss`` maps the flat parameters to the reduced loss and other
        outputs, which are returned.

        ``tensors`` replace ``self.tensors``. Without compilation this is slower than ``step``.
        """
        parameters, mean, square, steps = tensors
        output: T
        gradient, output = torch.func.grad(loss, has_aux=True)(parameters)
        if self._max_norm is not None:
            norm = torch.linalg.vector_norm(gradient)
            gradient = gradient * (self._max_norm / (norm + 1e-6)).clamp(max=1.0)
        steps.add_(1.0)
        mean.lerp_(gradient, 1.0 - self._betas[0])
        square.mul_(self._betas[1]).addcmul_(gradient, gradient, value=1.0 - self._betas[1])
        exponent = steps.to(widest_float(steps.device))
        correction, correction_square = (1.0 - beta**exponent for beta in self._betas)
        size, root = (learning_rate / correction).float(), correction_square.sqrt().float()
        parameters.sub_(size * mean / (square.sqrt() / root + self._eps))
        return output

    def state_dict(self) -> State:
        return {"mean": self._mean.clone(), "square": self._square.clone(), "steps": self._steps.clone()}

    def load_state_dict(self, state: State) -> None:
        self._mean.copy_(state["mean"])
        self._square.copy_(state["square"])
        self._steps.copy_(state["steps"])
