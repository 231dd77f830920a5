"""Adam (Kingma & Ba, arXiv:1412.6980), AdamW (Loshchilov & Hutter, arXiv:1711.05101) and RMSprop (Hinton 2012, in the form of
PyTorch's) on one flat parameter vector.

A small network spends more time on per-tensor overhead than on arithmetic. Therefore all parameters of a module become views
of one vector, and so do their gradients: clipping, the optimiser's step and a target update then take a few operations each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.config import AlgorithmConfig
from rl_training.models.encoder import widest_float
from rl_training.types import State

T = TypeVar("T")
#: How many updates pass between two calls of ``clear_vanished``.
CLEAR_EVERY = 64
#: Moving averages as small as this are set to 0. A mean that shrinks by a factor of 0.9 in each update does not get from here
#: into the subnormal range in ``CLEAR_EVERY`` updates. Of the squares, only those in that range are cleared.
VANISHED = {"mean": 1e-30, "momentum": 1e-30, "square": torch.finfo(torch.float32).tiny}
#: The root of a square that is cleared is up to 1.1e-19, or four times that after Adam's correction. A smaller epsilon than
#: this could change when it is added.
SMALLEST_EPS = 1e-10


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


class FlatOptimizer(ABC):
    """``step(losses, learning_rate)`` computes the gradient, clips it to a global norm and applies the optimiser's rule.

    A subclass makes its tensors in ``__init__`` and declares their names in the order in which ``rule`` takes them.
    """

    state_names: tuple[str, ...]

    def __init__(self, module: nn.Module, *, eps: float, max_norm: float | None, weight_decay: float = 0.0) -> None:
        self.module = module
        self._eps = eps
        self.parameters = flatten_parameters(module)
        on_cpu = self.parameters.device.type == "cpu"  # GPUs are as fast with subnormal numbers
        self._clears = on_cpu and self.parameters.dtype == torch.float32 and eps >= SMALLEST_EPS
        self.gradient = torch.zeros_like(self.parameters)
        owners = list(module.parameters())
        for parameter, view in zip(owners, _split_like(self.gradient, owners), strict=True):
            parameter.grad = view  # backward() adds into it
        self._max_norm, self._weight_decay = max_norm, weight_decay
        self._share = torch.empty(0)
        self._state: tuple[Tensor, ...] = ()

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
        self._apply(learning_rate)

    def _clip(self, max_norm: float) -> None:
        norm = torch.linalg.vector_norm(self.gradient)
        if self.gradient.device.type != "cpu":  # reading the norm would block
            self.gradient.mul_((max_norm / (norm + 1e-6)).clamp_(max=1.0))
        elif not (size := float(norm)) <= max_norm:  # also if it is not a number
            # The same operations in single precision; tensors of one number take four times as long.
            factor = np.float32(max_norm) * (np.float32(1.0) / (np.float32(size) + np.float32(1e-6)))
            self.gradient.mul_(min(float(factor), 1.0))

    @abstractmethod
    def _apply(self, learning_rate: float) -> None:
        """Moves the parameters along the clipped gradient."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Everything that a step changes."""
        return self.parameters, *self._state

    def traced_step(self, tensors: Sequence[Tensor], loss: Callable[[Tensor], tuple[Tensor, T]], learning_rate: Tensor) -> T:
        """``step`` in operations that a compiler can fuse. ``loss`` maps the flat parameters to the reduced loss and other
        outputs, which are returned.

        ``tensors`` replace ``self.tensors``. Without compilation this is slower than ``step``.
        """
        parameters, *state = tensors
        output: T
        gradient, output = torch.func.grad(loss, has_aux=True)(parameters)
        if self._max_norm is not None:
            norm = torch.linalg.vector_norm(gradient)
            gradient = gradient * (self._max_norm / (norm + 1e-6)).clamp(max=1.0)
        self._traced_apply(parameters, gradient, state, learning_rate)
        return output

    @abstractmethod
    def _traced_apply(self, parameters: Tensor, gradient: Tensor, state: Sequence[Tensor], learning_rate: Tensor) -> None:
        """``_apply`` to these tensors; the learning rate is in double precision."""

    def clear_vanished(self) -> None:
        """Sets moving averages that are too small to change a weight of any ordinary size to 0.

        Where a gradient stays 0, as it does behind a ReLU that is never active, the average of the gradient shrinks until it
        is subnormal (below 1.2e-38), and it never becomes 0, because the smallest number times 0.9 is rounded up again.
        Many CPUs take up to a hundred times as long for arithmetic with such numbers.
        """
        if not self._clears:
            return
        for name, tensor in zip(self.state_names, self._state, strict=True):
            if name in VANISHED:
                torch.hardshrink(tensor, VANISHED[name], out=tensor)

    def state_dict(self) -> State:
        return {name: tensor.clone() for name, tensor in zip(self.state_names, self._state, strict=True)}

    def load_state_dict(self, state: State) -> None:
        for name, tensor in zip(self.state_names, self._state, strict=True):
            tensor.copy_(state[name])


class FlatAdam(FlatOptimizer):
    """Adam. ``weight_decay`` is added to the gradient or, with ``decoupled``, applied to the weights (AdamW)."""

    state_names = ("mean", "square", "steps")

    def __init__(
        self,
        module: nn.Module,
        *,
        eps: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
        max_norm: float | None,
        weight_decay: float = 0.0,
        decoupled: bool = False,
    ) -> None:
        super().__init__(module, eps=eps, max_norm=max_norm, weight_decay=weight_decay)
        self._betas = betas
        self._clears &= decoupled or not weight_decay  # decay in the gradient shrinks a weight as fast as its averages
        self._mean = torch.zeros_like(self.parameters)
        self._square = torch.zeros_like(self.parameters)
        self._steps = torch.zeros((), dtype=torch.float32, device=self.parameters.device)
        self._state = self._mean, self._square, self._steps
        self._decoupled = decoupled
        # torch.optim.Adam(fused=True) ends up calling this; a direct call saves 0.1 ms of bookkeeping.
        self._fused_step = torch._fused_adamw_ if decoupled else torch._fused_adam_

    def _apply(self, learning_rate: float) -> None:
        self._steps.add_(1.0)
        self._fused_step(
            [self.parameters],
            [self.gradient],
            [self._mean],
            [self._square],
            [],
            [self._steps],
            lr=learning_rate,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=self._weight_decay,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
        )

    def _traced_apply(self, parameters: Tensor, gradient: Tensor, state: Sequence[Tensor], learning_rate: Tensor) -> None:
        mean, square, steps = state
        if self._weight_decay and self._decoupled:
            parameters.mul_((1.0 - learning_rate * self._weight_decay).float())
        elif self._weight_decay:
            gradient = gradient + self._weight_decay * parameters
        steps.add_(1.0)
        mean.lerp_(gradient, 1.0 - self._betas[0])
        square.mul_(self._betas[1]).addcmul_(gradient, gradient, value=1.0 - self._betas[1])
        exponent = steps.to(widest_float(steps.device))
        correction, correction_square = (1.0 - beta**exponent for beta in self._betas)
        size, root = (learning_rate / correction).float(), correction_square.sqrt().float()
        parameters.sub_(size * mean / (square.sqrt() / root + self._eps))


class FlatRMSprop(FlatOptimizer):
    """RMSprop, with momentum and centred as options. ``weight_decay`` is added to the gradient."""

    state_names = ("square", "mean", "momentum")

    def __init__(
        self,
        module: nn.Module,
        *,
        eps: float = 1e-8,
        alpha: float = 0.99,
        momentum: float = 0.0,
        centered: bool = False,
        max_norm: float | None,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(module, eps=eps, max_norm=max_norm, weight_decay=weight_decay)
        self._alpha, self._momentum, self._centered = alpha, momentum, centered
        # Centred: where the square is cleared and the mean is not yet, the variance would be negative.
        self._clears &= not (centered or weight_decay)  # weight decay: see FlatAdam
        sizes = (len(self.parameters), len(self.parameters) if centered else 0, len(self.parameters) if momentum else 0)
        self._state = tuple(self.parameters.new_zeros(size) for size in sizes)

    def _apply(self, learning_rate: float) -> None:
        gradient = self.gradient
        if self._weight_decay:
            gradient = gradient.add(self.parameters, alpha=self._weight_decay)
        direction, divisor = self._direction(gradient, self._state)
        if self._momentum:
            self.parameters.add_(direction, alpha=-learning_rate)
        else:
            self.parameters.addcdiv_(direction, divisor, value=-learning_rate)

    def _direction(self, gradient: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Updates the moving averages; returns the direction of the step and what it is still to be divided by."""
        square, mean, momentum = state
        square.mul_(self._alpha).addcmul_(gradient, gradient, value=1.0 - self._alpha)
        if self._centered:
            mean.lerp_(gradient, 1.0 - self._alpha)
            divisor = square.addcmul(mean, mean, value=-1.0).sqrt().add(self._eps)
        else:
            divisor = square.sqrt().add(self._eps)
        if not self._momentum:
            return gradient, divisor
        return momentum.mul_(self._momentum).addcdiv_(gradient, divisor), torch.ones_like(divisor)

    def _traced_apply(self, parameters: Tensor, gradient: Tensor, state: Sequence[Tensor], learning_rate: Tensor) -> None:
        if self._weight_decay:
            gradient = gradient + self._weight_decay * parameters
        direction, divisor = self._direction(gradient, state)
        parameters.sub_(learning_rate.float() * (direction if self._momentum else direction / divisor))


def make_optimizer(
    module: nn.Module, config: AlgorithmConfig, *, max_norm: float | None, weight_decay: float | None = None
) -> FlatOptimizer:
    """The configured optimiser; ``weight_decay`` replaces the configured one."""
    chosen = config.weight_decay if weight_decay is None else weight_decay
    decay = (0.01 if config.optimizer == "adamw" else 0.0) if chosen is None else chosen
    if config.optimizer == "rmsprop":
        return FlatRMSprop(
            module,
            eps=config.adam_eps,
            alpha=config.rmsprop_alpha,
            momentum=config.rmsprop_momentum,
            centered=config.rmsprop_centered,
            max_norm=max_norm,
            weight_decay=decay,
        )
    decoupled = config.optimizer == "adamw"
    betas = config.adam_betas
    return FlatAdam(module, eps=config.adam_eps, betas=betas, max_norm=max_norm, weight_decay=decay, decoupled=decoupled)
