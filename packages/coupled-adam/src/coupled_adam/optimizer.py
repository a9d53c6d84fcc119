"""Coupled Adam: AdamW whose second moment is averaged over the rows of an embedding matrix (paper,
Sec. 4).

The paper is *Better Embeddings with Coupled Adam*, https://arxiv.org/abs/2502.08441.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import ParamsT

from coupled_adam.adamw import adamw_step, dense
from coupled_adam.checks import (
    ONLY_COUPLED,
    check,
    refuse,
    refuse_without_effect,
    warn_of_other_matrices,
)
from coupled_adam.numbers import Scalar
from coupled_adam.saved_state import of_adamw, saved_group, saved_step_and_moment, step_device
from coupled_adam.shards import local, part_of_row, placed_as, sums_over_shards
from coupled_adam.update import has_kernels, is_one_kernel, sums_of_squares, update


class CoupledAdam(torch.optim.Optimizer):
    r"""AdamW with one second moment per column, for embeddings, and plain AdamW for all other
    parameters.

    A parameter group with ``coupled=True`` follows the rule below. A group with ``coupled=False``
    is updated as by ``torch.optim.AdamW``. If no group has the key ``coupled``, all are coupled; if
    some have it, a group without it is not. ``coupled_param_groups`` splits a model into such
    groups.

    For an embedding matrix ``E`` with ``vocab_size`` rows ``i`` and gradient rows
    ``g_i``:

        m_i   <- beta1 m_i + (1 - beta1) g_i
        nu    <- beta2 nu  + (1 - beta2) mean_i(g_i^2)                 nu: one number per column
        E_i   <- (1 - lr weight_decay) E_i
                 - lr m_i / (1 - beta1^t) / (sqrt(scale nu / (1 - beta2^t)) + eps)

    The paper averages the moving averages ``\hat v_i``. Averaging is linear, so averaging the
    squared gradients first gives the same numbers and needs a state of ``d_model`` numbers instead
    of ``vocab_size x d_model``. The state is ``step``, ``exp_avg`` (shaped as the parameter) and
    ``exp_avg_sq`` (without ``coupled_dim``, float32 or better).

    Each parameter is coupled separately. Sharded parameters (``DTensor``) are updated as if they
    were whole, with one reduction of the column sums per step. One inf or NaN element in a gradient
    makes its whole column NaN, where AdamW loses only the element: clip, or check the norm, before
    the step.

    Args:
        params: parameters or parameter groups. A coupled parameter must be a matrix of real numbers
            with a row for each token, such as the weight of an embedding or of a head.
        lr: learning rate, a number or a tensor of one element.
        betas: decay rates of the first and the second moment.
        eps: term that is added to the root of the second moment.
        weight_decay: decoupled weight decay, as in AdamW; its default is 0, and 0.01 in
            torch.optim.AdamW.
        scale: factor on the second moment, ``2**-n`` in the paper's Sec. 6.1; 1 is Coupled Adam.
        coupled_dim: dimension over which the second moment is averaged; 0 averages over the rows.
        maximize: whether to maximize the objective instead of minimizing it.
        capturable: whether a step can be captured in a CUDA graph: it never synchronizes, and
            ``step`` is on the GPU.
        fused: whether one kernel does the update. ``None``: on CUDA if Triton is installed.
            ``True``: on CPUs too, where torch.compile makes the kernel at the first step and needs
            a C++ compiler. ``False``: torch's own operations. These also serve what the CUDA
            kernels do not support: another coupled dimension and tensors that are not contiguous.
            In a group that is not coupled, ``True`` selects torch's fused AdamW and any other value
            torch's default.
        amsgrad, foreach, differentiable: as in torch.optim.AdamW, and off: code that gives AdamW's
            own defaults works.

    Raises:
        TypeError: if ``params`` is a module.
        ValueError: if a setting is out of range, not supported or without effect, or a coupled
            parameter is not a matrix or is complex.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        scale: float = 1.0,
        coupled_dim: int = 0,
        maximize: bool = False,
        capturable: bool = False,
        fused: bool | None = None,
        amsgrad: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
    ) -> None:
        if isinstance(params, nn.Module):
            raise TypeError(
                f"params: got a module, {type(params).__name__}; split its parameters into groups: "
                "CoupledAdam(coupled_param_groups(model), lr=...)"
            )
        refuse({"amsgrad": amsgrad, "foreach": foreach, "differentiable": differentiable})
        if not isinstance(params, Tensor):  # torch refuses a single tensor itself
            params = list(params)  # type: ignore[assignment]
        own = [group for group in params if isinstance(group, dict)]
        marked = any("coupled" in group for group in own)
        defaults = {
            "coupled": not marked,
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "scale": scale,
            "coupled_dim": coupled_dim,
            "maximize": maximize,
            "capturable": capturable,
            "fused": fused,
        }
        if own:
            arguments = inspect.signature(CoupledAdam).parameters
            refuse_without_effect(
                defaults, {name: each.default for name, each in arguments.items()}, own
            )
        self._clipped: dict[Tensor, _Clipped] = {}
        super().__init__(params, defaults)
        if not marked:
            warn_of_other_matrices(self.param_groups)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._clipped = {}
        for group in self.param_groups:
            for name, value in ({"coupled": True} | self.defaults).items():
                # A state of AdamW, or of an older version, lacks some settings.
                group.setdefault(name, value)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group after checking its settings and parameters."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            check(group)
        except ValueError:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor | float] | None = None) -> Tensor | float | None:  # type: ignore[override]
        """Update all parameters that have a gradient; return the closure's loss if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["coupled"]:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._update(parameter, parameter.grad, group)
            else:
                adamw_step([p for p in group["params"] if p.grad is not None], self.state, group)
        return loss

    @torch.no_grad()
    def clip_grad_norm_(
        self, parameters: Iterable[Tensor], max_norm: float, *, error_if_nonfinite: bool = False
    ) -> Tensor:
        """Clip the joint 2-norm of the gradients of ``parameters`` and of this optimizer; return
        the unclipped norm.

        Call it once, right before the step, in place of ``torch.nn.utils.clip_grad_norm_``,
        with all parameters that are clipped together, such as ``model.parameters()``. The column
        sums that the step needs also give the norm, and the step applies the factor to coupled
        parameters, so their gradients are read once and not changed. All other gradients are scaled
        in place. With ``error_if_nonfinite``, a norm that is not finite raises ``RuntimeError``.
        """
        own = {
            parameter: (group, parameter.grad)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        }
        coupled = {
            parameter: (group, grad) for parameter, (group, grad) in own.items() if group["coupled"]
        }
        unique = dict.fromkeys((*parameters, *own))
        others = [
            parameter
            for parameter in unique
            if parameter.grad is not None and parameter not in coupled
        ]
        norm_of_others = None
        if others:
            norm_of_others = torch.nn.utils.get_total_norm(
                [p.grad for p in others if p.grad is not None]
            )
        if isinstance(norm_of_others, DTensor):
            norm_of_others = norm_of_others.full_tensor()
        norm, clipped = self._clip_coupled(coupled, norm_of_others, max_norm)
        if error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(f"clip_grad_norm_: the norm of the gradients is {norm.item()}")
        if others:
            torch.nn.utils.clip_grads_with_norm_(others, max_norm, norm)
        for parameter, each in clipped.items():
            # Gradients in one bucket of DistributedDataParallel share their version, and those of
            # the others were changed last.
            self._clipped[parameter] = replace(each, version=_version(each.grad))
        return norm

    def _clip_coupled(
        self,
        coupled: dict[Tensor, tuple[dict[str, Any], Tensor]],
        norm_of_others: Tensor | None,
        max_norm: float,
    ) -> tuple[Tensor, dict[Tensor, "_Clipped"]]:
        """Return the joint norm, and what the step takes over for each coupled parameter."""
        one_device = len({grad.device for _, grad in coupled.values()}) == 1
        if one_device and all(
            has_kernels(group, parameter, grad) for parameter, (group, grad) in coupled.items()
        ):
            return _clip_by_kernels(coupled, norm_of_others, max_norm)
        sums = {
            parameter: _sums(parameter, grad, group) for parameter, (group, grad) in coupled.items()
        }
        squares = [column.sum() for column in sums.values()]
        if norm_of_others is not None:
            squares.append(norm_of_others.square())
        if not squares:
            return torch.zeros(()), {}
        square = squares[0]
        if len(squares) > 1:
            square = torch.stack([each.to(square.device) for each in squares]).sum()
        norm = square.sqrt()
        clipped: dict[Tensor, _Clipped] = {}
        if coupled:
            # torch's clip_grad_norm_ adds the same 1e-6.
            factor = (max_norm / (norm + 1e-6)).clamp(max=1)
        for parameter, (_, grad) in coupled.items():
            # On a CPU .item() does not synchronize, and a float 1 lets the step skip the
            # multiplication.
            on_cpu = parameter.device.type == "cpu"
            scalar = factor.item() if on_cpu else factor.to(parameter.device)
            clipped[parameter] = _Clipped(grad, _version(grad), sums[parameter], scalar)
        return norm, clipped

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, and what ``clip_grad_norm_`` computed from them."""
        self._clipped = {}
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this class or of ``torch.optim.AdamW`` for the same parameters.

        AdamW's second moment is averaged, and settings that AdamW does not have are kept. Nothing
        is shared with the state that is given. Raises ``ValueError`` for a state that does not fit
        this optimizer.
        """
        groups = list(state_dict["param_groups"])
        for index, (saved, group) in enumerate(zip(groups, self.param_groups, strict=False)):
            groups[index] = saved_group(saved, group, index)
        # torch refuses a wrong number of groups.
        super().load_state_dict({**state_dict, "param_groups": groups})
        for group, saved in zip(self.param_groups, groups, strict=True):
            for parameter, index in zip(group["params"], saved["params"], strict=True):
                if index in state_dict["state"]:
                    # torch's own copy would have moments in the parameter's dtype.
                    saved_state, state = state_dict["state"][index], self.state[parameter]
                    state |= saved_step_and_moment(saved_state, parameter, group)
                    if state["exp_avg"] is saved_state["exp_avg"]:
                        # torch copies only what it has to convert.
                        state["exp_avg"] = state["exp_avg"].clone()

    @torch.no_grad()
    def adamw_state_dict(self) -> dict[str, Any]:
        """Return a state that a ``torch.optim.AdamW`` with the same groups of parameters can load.

        Moments and step counts go on; each row of a coupled parameter has the second moment of its
        column, times ``scale``. AdamW gives it the dtype of the parameter.
        """
        state_dict = self.state_dict()
        state, groups = dict(state_dict["state"]), []
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            groups.append(
                {
                    name: value
                    for name, value in saved.items()
                    if name not in ("coupled", *ONLY_COUPLED)
                }
            )
            for parameter, index in zip(group["params"], saved["params"], strict=True):
                if index in state:
                    state[index] = of_adamw(state[index], parameter, group)
        return {**state_dict, "state": state, "param_groups": groups}

    def load_adamw_state(self, adamw: torch.optim.Optimizer) -> None:
        """Copy the moments that a ``torch.optim.AdamW`` has for this optimizer's parameters.

        The second moment of coupled parameters is averaged, and settings are kept. Use it to
        replace an AdamW that has other parameter groups.
        """
        for group in self.param_groups:
            for parameter in group["params"]:
                if adamw_state := adamw.state.get(parameter):
                    state = saved_step_and_moment(adamw_state, parameter, group)
                    self.state[parameter] = state | {"exp_avg": adamw_state["exp_avg"].clone()}

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        clipped = self._clipped.pop(parameter, None)
        if clipped is not None and (clipped.grad is not grad or clipped.version != _version(grad)):
            raise RuntimeError(
                "step: a gradient was replaced or changed after clip_grad_norm_; clip last, right"
                " before the step, and after a step that is left out call the optimizer's"
                " zero_grad()"
            )
        if parameter.numel() == 0:
            return
        sums = _sums(parameter, grad, group) if clipped is None else clipped.sums
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(
                (), dtype=torch.float32, device=step_device(parameter, group)
            )
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(sums)
        dim = group["coupled_dim"] % parameter.ndim
        beta1, beta2 = group["betas"]
        state["step"] += 1
        # As in torch.optim.AdamW, the step is a CPU tensor unless capturable, so .item() does not
        # synchronize.
        step: Scalar = state["step"] if group["capturable"] else state["step"].item()
        factor: Scalar = 1.0 if clipped is None else clipped.factor
        if is_one_kernel(group, parameter, state["exp_avg"], grad):
            state["exp_avg_sq"] = _step_by_kernel(parameter, grad, group, state, sums, factor)
            return

        mean = sums / parameter.shape[dim]
        gain: Scalar = 1 - beta1
        if isinstance(factor, Tensor) or factor != 1:
            mean, gain = mean * factor**2, gain * factor
        exp_avg_sq: Tensor = state["exp_avg_sq"].lerp_(mean, 1 - beta2)
        root = (exp_avg_sq * (group["scale"] / (1 - beta2**step))).sqrt_()
        row = group["lr"] / (1 - beta1**step) / root.add_(group["eps"])
        update(
            local(parameter),
            local(state["exp_avg"]),
            local(placed_as(grad, parameter)),
            part_of_row(parameter, row, dim),
            dim,
            beta1=beta1,
            gain=-gain if group["maximize"] else gain,
            keep=1 - group["lr"] * group["weight_decay"],
            fused=group["fused"],
        )


@dataclass(frozen=True)
class _Clipped:
    """What the step takes over from clipping: a gradient, the column sums of its squares and the
    factor on it.

    ``version`` tells whether the gradient was changed in place since.
    """

    grad: Tensor
    version: int
    sums: Tensor
    factor: Scalar


def _clip_by_kernels(
    coupled: dict[Tensor, tuple[dict[str, Any], Tensor]],
    norm_of_others: Tensor | None,
    max_norm: float,
) -> tuple[Tensor, dict[Tensor, _Clipped]]:
    """Return the joint norm, and what the step takes over, in two launches for each parameter."""
    from coupled_adam import triton_kernels

    sums, found = {}, None
    for parameter, (_, grad) in coupled.items():
        others = None if norm_of_others is None else norm_of_others.to(grad.device)
        sums[parameter], found = triton_kernels.norm_of(grad.flatten(1), max_norm, others, found)
    assert found is not None, "without a coupled parameter there is no kernel"
    factor, norm, _ = found.unbind()
    clipped = {}
    for parameter, (_, grad) in coupled.items():
        sums_of = sums[parameter].view(grad.shape[1:])
        clipped[parameter] = _Clipped(grad, _version(grad), sums_of, factor)
    return norm, clipped


def _step_by_kernel(
    parameter: Tensor,
    grad: Tensor,
    group: dict[str, Any],
    state: dict[str, Any],
    sums: Tensor,
    factor: Scalar,
) -> Tensor:
    """Update a parameter and its first moment in one launch, and return its new second moment."""
    from coupled_adam import triton_kernels

    beta1, beta2 = group["betas"]
    step = state["step"].item()
    gain = beta1 - 1 if group["maximize"] else 1 - beta1
    exp_avg_sq = triton_kernels.step(
        parameter.flatten(1),
        state["exp_avg"].flatten(1),
        grad.flatten(1),
        sums.flatten(),
        state["exp_avg_sq"].flatten(),
        factor if isinstance(factor, Tensor) else None,
        beta1,
        gain,
        1 - group["lr"] * group["weight_decay"],
        1 - beta2,
        group["scale"] / (1 - beta2**step),
        group["lr"] / (1 - beta1**step),
        group["eps"],
    )
    return exp_avg_sq.view(sums.shape)


def _version(grad: Tensor) -> int:
    """Return torch's count of the changes in place of a gradient; the local tensor of a shard has
    it."""
    # The only way to read the count without keeping a copy of the gradient. Tensors of inference
    # mode have none.
    return 0 if local(grad).is_inference() else local(grad)._version


def _sums(parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> Tensor:
    """Return the sums of squares of a gradient over the coupled dimension, across all shards."""
    placed, dim = placed_as(dense(grad), parameter), group["coupled_dim"] % parameter.ndim
    return sums_over_shards(sums_of_squares(local(placed), dim, group["fused"]), placed, dim)
