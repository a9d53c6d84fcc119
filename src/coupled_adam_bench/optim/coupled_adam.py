"""Coupled Adam: AdamW whose second moment is averaged over the rows of an embedding matrix (paper, Sec. 4)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import ParamsT

from coupled_adam_bench.optim.coupled_shards import local, part_of_row, placed_as, sums_over_shards
from coupled_adam_bench.optim.coupled_update import Scalar, exact_dtype, sums_of_squares, update


class CoupledAdam(torch.optim.Optimizer):
    r"""AdamW with one second moment per column instead of one per element.

    For an embedding matrix :math:`E` with ``vocab_size`` rows :math:`i` and gradient rows :math:`g_i`::

        m_i   <- beta1 m_i + (1 - beta1) g_i
        nu    <- beta2 nu  + (1 - beta2) mean_i(g_i^2)                     nu: one number per column
        E_i   <- (1 - lr weight_decay) E_i - lr m_i / (1 - beta1^t) / (sqrt(scale nu / (1 - beta2^t)) + eps)

    The paper averages the moving averages :math:`\hat v_i`; averaging is linear, so averaging the squared gradients
    first is the same and needs a state of ``d_model`` numbers instead of ``vocab_size x d_model``. The state is
    ``step``, ``exp_avg`` (as the parameter) and ``exp_avg_sq`` (without ``coupled_dim``; float32 or better).

    Several parameters are coupled each for itself. Sharded ones (``DTensor``) are updated as if they were whole: one
    reduction of the columns' sums a step. A gradient that is inf or NaN in one element makes its whole column NaN,
    where AdamW loses the element: clip, or check the norm, before the step. See docs/coupled_adam.md.

    Args:
        params: real dense parameters or groups of them; of an embedding or a head the matrix with a row for each token.
        lr: learning rate, a number or a tensor of one element.
        betas: decay of the first and second moment.
        eps: added to the root of the second moment.
        weight_decay: decoupled, as in AdamW.
        scale: factor on the second moment, ``2**-n`` in the paper's Sec. 6.1; 1 is Coupled Adam.
        coupled_dim: the dimension that is averaged over; 0 are the rows.
        maximize: go up the gradient.
        capturable: nothing waits for the device, so that a CUDA graph can hold a step; ``step`` lies on the device.
        fused: one kernel for the update. ``None``: for CUDA where Triton is installed. ``True``: on CPUs too, where
            torch.compile makes it at the first step and needs a C++ compiler. ``False``: torch's own operations, which
            also do what kernels for CUDA do not: another coupled dimension, tensors that are not contiguous.

    Raises:
        ValueError: for a setting out of range, or a parameter that is complex or has no such dimension.
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
    ) -> None:
        defaults = {
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
        self._clipped: dict[Tensor, _Clipped] = {}
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._clipped = {}
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)  # written by an AdamW, or by a version before the setting

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group with its own settings; they and its parameters are checked."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            _check(group)
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
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    @torch.no_grad()
    def clip_grad_norm_(
        self, parameters: Iterable[Tensor], max_norm: float, *, error_if_nonfinite: bool = False
    ) -> Tensor:
        """Clip the 2-norm of all gradients of ``parameters`` and of this optimizer together, and return it unclipped.

        Use it in place of :func:`torch.nn.utils.clip_grad_norm_` with all that is clipped together, such as
        ``model.parameters()``, once, right before the step. The column sums that the step needs give the norm too, and
        the factor goes into the step's own arithmetic: this optimizer's gradients are read once and stay as they are.
        All others are scaled in place. ``RuntimeError`` for a norm that is not finite, if ``error_if_nonfinite``.
        """
        own = {
            parameter: (group, parameter.grad)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        }
        sums = {parameter: _sums(parameter, grad, group) for parameter, (group, grad) in own.items()}
        others = [parameter for parameter in parameters if parameter.grad is not None and parameter not in own]
        norm_of_others = torch.nn.utils.get_total_norm([p.grad for p in others if p.grad is not None])
        if isinstance(norm_of_others, DTensor):
            norm_of_others = norm_of_others.full_tensor()
        squares = [column.sum() for column in sums.values()] + [norm_of_others.square()]
        norm = torch.stack([square.to(squares[0].device) for square in squares]).sum().sqrt()
        if error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(f"clip_grad_norm_: the norm of the gradients is {norm.item()}")
        torch.nn.utils.clip_grads_with_norm_(others, max_norm, norm)
        factor = (max_norm / (norm + 1e-6)).clamp(max=1)  # as torch's
        for parameter, (_, grad) in own.items():
            on_cpu = parameter.device.type == "cpu"  # where a number costs no wait, and 1 no multiplication
            self._clipped[parameter] = _Clipped(
                grad, sums[parameter], factor.item() if on_cpu else factor.to(parameter.device)
            )
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, and what :meth:`clip_grad_norm_` knew of them."""
        self._clipped = {}
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, or one of ``torch.optim.AdamW`` for the same parameters: its second moment is averaged.

        Settings that AdamW does not have stay as they are. ``ValueError`` for a state that is not of this rule.
        """
        groups = list(state_dict["param_groups"])
        for index, (saved, group) in enumerate(zip(groups, self.param_groups, strict=False)):
            if "coupled_dim" not in saved:
                groups[index] = _settings_of_adamw(saved, group)
        super().load_state_dict({**state_dict, "param_groups": groups})  # refuses another number of groups
        for group, saved in zip(self.param_groups, groups, strict=True):
            for parameter, index in zip(group["params"], saved["params"], strict=True):
                if index in state_dict["state"]:  # from there, since torch casts moments to the parameter's dtype
                    self.state[parameter] |= _coupled_state(state_dict["state"][index], parameter, group)

    def load_adamw_state(self, adamw: torch.optim.Optimizer) -> None:
        """Take over the moments that a ``torch.optim.AdamW`` has of this optimizer's parameters, the second averaged.

        For a model whose one AdamW gives way to Coupled Adam for some of its parameters; settings stay as they are.
        """
        for group in self.param_groups:
            for parameter in group["params"]:
                if found := adamw.state.get(parameter):
                    state = _coupled_state(found, parameter, group)
                    self.state[parameter] = state | {"exp_avg": found["exp_avg"].clone()}

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        clipped = self._clipped.pop(parameter, None)
        if clipped is not None and clipped.grad is not grad:
            raise RuntimeError("step: a gradient was replaced after clip_grad_norm_; clip last, right before the step")
        if parameter.numel() == 0:
            return
        sums = _sums(parameter, grad, group) if clipped is None else clipped.sums
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device if group["capturable"] else "cpu")
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(sums)
        dim = group["coupled_dim"] % parameter.ndim
        beta1, beta2 = group["betas"]
        state["step"] += 1
        # As in torch.optim.AdamW: a CPU tensor unless capturable, so that asking for its value waits for no device.
        step: Scalar = state["step"] if group["capturable"] else state["step"].item()

        mean = sums / parameter.shape[dim]
        gain: Scalar = 1 - beta1
        if clipped is not None:
            mean, gain = mean * clipped.factor**2, gain * clipped.factor
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
    """What clipping leaves for the step: the gradient it saw, the sums of its squares and the factor on it."""

    grad: Tensor
    sums: Tensor
    factor: Scalar


def _sums(parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> Tensor:
    """Return the sums of the squares of a whole gradient over the coupled dimension."""
    if grad.layout != torch.strided:
        raise ValueError(f"params: CoupledAdam takes dense gradients, not {grad.layout}; use Embedding(sparse=False)")
    placed, dim = placed_as(grad, parameter), group["coupled_dim"] % parameter.ndim
    return sums_over_shards(sums_of_squares(local(placed), dim, group["fused"]), placed, dim)


def _check(group: dict[str, Any]) -> None:
    for name, allowed, what in (
        ("lr", group["lr"] >= 0, "at least 0"),
        ("betas", all(0 <= beta < 1 for beta in group["betas"]), "at least 0 and below 1, both"),
        ("eps", group["eps"] >= 0, "at least 0"),
        ("weight_decay", group["weight_decay"] >= 0, "at least 0"),
        ("scale", group["scale"] > 0, "above 0"),
    ):
        if not allowed:
            raise ValueError(f"{name}: {group[name]} is out of range; it must be {what}")
    for parameter in group["params"]:
        shape, dim = tuple(parameter.shape), group["coupled_dim"]
        if parameter.ndim < 2 or not parameter.is_floating_point():
            raise ValueError(
                f"params: CoupledAdam takes matrices of real numbers, got a parameter of shape {shape} and "
                f"{parameter.dtype}; give it to another optimizer"
            )
        if not -parameter.ndim <= dim < parameter.ndim:
            raise ValueError(f"coupled_dim: {dim} is not a dimension of a parameter of shape {shape}")


def _settings_of_adamw(saved: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a group of AdamW's that mean the same here, and the others of ``group``."""
    if saved.get("amsgrad"):
        raise ValueError("amsgrad: Coupled Adam does not have it; train on with AdamW without it, or start anew")
    if saved["weight_decay"] and not saved.get("decoupled_weight_decay", True):
        raise ValueError("weight_decay: of Adam, a part of its gradient; Coupled Adam has AdamW's; start anew")
    return {**group, **{name: value for name, value in saved.items() if name in _SHARED_WITH_ADAMW}}


_SHARED_WITH_ADAMW = ("params", "param_names", "initial_lr", "lr", "betas", "eps", "weight_decay", "maximize")


def _coupled_state(found: dict[str, Any], parameter: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
    """Return step and second moment of a parameter from its state, in which each element may have a moment."""
    if missing := [name for name in ("step", "exp_avg", "exp_avg_sq") if name not in found]:
        raise ValueError(f"state: has no {', '.join(missing)}; it must be one of CoupledAdam or torch.optim.AdamW")
    dim, moment = group["coupled_dim"] % parameter.ndim, found["exp_avg_sq"]
    exact = exact_dtype(parameter.dtype)
    if moment.shape == parameter.shape:
        moment = moment.to(exact).mean(dim)
        moment = moment.full_tensor() if isinstance(moment, DTensor) else moment
    expected = (*parameter.shape[:dim], *parameter.shape[dim + 1 :])
    if moment.shape != expected:
        raise ValueError(
            f"state: exp_avg_sq has shape {tuple(moment.shape)}; a parameter of shape {tuple(parameter.shape)} "
            f"with coupled_dim {dim} needs {expected}"
        )
    device = parameter.device
    return {
        "step": torch.as_tensor(found["step"], dtype=torch.float32).to(
            device if group["capturable"] else "cpu", copy=True
        ),
        "exp_avg_sq": moment.to(device, exact, copy=True),
    }
