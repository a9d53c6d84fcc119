"""The common base of all language models: pre-norm layers without biases, head, initialisation and
loss.

Shapes: B sequences, T tokens, D = d_model, V = vocab_size, H heads of K = D / H.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coupled_adam_bench.models.cross_entropy import (
    IGNORED,
    ChunkLoss,
    LogitObserver,
    Softmax,
    by_log_softmax,
    cap,
    sum_with_z_loss,
    token_cross_entropy,
)

LAYER_NORM_EPS = 1e-5  # [C]
IN_FLOAT32 = {"cpu"}
"""Devices whose attention is slower in bfloat16, the backward pass above all
(docs/gpu.md)."""


class Initialization(Protocol):
    """What fills the initial matrices in place of a normal distribution."""

    def fill(
        self, name: str, matrix: Tensor, model: "LanguageModel", generator: torch.Generator
    ) -> None:
        """Fill a matrix in place with its initial values, drawn by ``generator``."""


def _is_in_float32(device: str) -> bool:
    """Tell whether attention on a device leaves the precision of autocast for float32."""
    return device in IN_FLOAT32 and torch.is_autocast_enabled(device)


def _attention(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, sees_B1TT: Tensor | None) -> Tensor:
    """Return the weighted values, shape BHTK, under autocast of one of ``IN_FLOAT32`` in
    float32."""
    device = q_BHTK.device.type
    if not _is_in_float32(device):
        return F.scaled_dot_product_attention(
            q_BHTK, k_BHTK, v_BHTK, sees_B1TT, is_causal=sees_B1TT is None
        )
    with torch.autocast(device, enabled=False):
        q_BHTK, k_BHTK, v_BHTK = q_BHTK.float(), k_BHTK.float(), v_BHTK.float()
        return F.scaled_dot_product_attention(
            q_BHTK, k_BHTK, v_BHTK, sees_B1TT, is_causal=sees_B1TT is None
        )


class TransformerBlock(nn.Module, ABC):
    """One transformer layer: causal self-attention, then an MLP, each with a norm before and a
    residual around."""

    def __init__(self, d_model: int, n_head: int, d_ffn: int) -> None:  # noqa: ARG002 - the MLP is the subclass's
        super().__init__()
        self.n_head = n_head
        self.ln_1 = self.norm(d_model)
        self.attn_qkv = self.qkv(d_model)
        self.attn_proj = nn.Linear(d_model, d_model, bias=False)
        self.ln_2 = self.norm(d_model)

    @staticmethod
    def norm(width: int) -> nn.Module:
        """Return the norm before attention and MLP, and behind the last layer."""
        return nn.LayerNorm(width, LAYER_NORM_EPS, bias=False)

    @staticmethod
    def qkv(d_model: int) -> nn.Module:
        """Return what computes queries, keys and values, side by side."""
        return nn.Linear(d_model, 3 * d_model, bias=False)

    def apply_rotary(
        self, q_BHTK: Tensor, k_BHTK: Tensor, *positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Apply rotary positions to queries and keys; this is the identity for learned
        positions."""
        assert not positions
        return q_BHTK, k_BHTK

    @abstractmethod
    def mlp(self, x_BTD: Tensor) -> Tensor:
        """Return what the MLP adds to the residual stream, shape BTD."""

    def forward(self, x_BTD: Tensor, *positions: Tensor, sees_B1TT: Tensor | None = None) -> Tensor:
        """Return the residual stream after this layer, shape BTD; ``positions`` go to
        :meth:`apply_rotary`.

        ``sees_B1TT`` says which tokens each token attends to; without it, to itself and all before
        it.
        """
        qkv_BTD = self.attn_qkv(self.ln_1(x_BTD))
        if not positions and _is_in_float32(qkv_BTD.device.type):
            # One cast of all three, which gives the same numbers where nothing turns them first.
            qkv_BTD = qkv_BTD.float()
        q_BHTK, k_BHTK, v_BHTK = (
            z.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for z in qkv_BTD.chunk(3, dim=-1)
        )
        q_BHTK, k_BHTK = self.apply_rotary(q_BHTK, k_BHTK, *positions)
        y_BHTK = _attention(q_BHTK, k_BHTK, v_BHTK, sees_B1TT)
        x_BTD = x_BTD + self.attn_proj(y_BHTK.transpose(1, 2).flatten(-2))
        return x_BTD + self.mlp(self.ln_2(x_BTD))


def uninitialised_embedding(n_rows: int, d_model: int) -> nn.Embedding:
    """Return an embedding without torch's own random values, which
    :meth:`LanguageModel.init_weights` would replace.

    On ``meta``, torch loads its compiler to draw them, which takes seconds.
    """
    return nn.Embedding.from_pretrained(torch.empty(n_rows, d_model), freeze=False)  # type: ignore[no-untyped-call,no-any-return]


class LanguageModel(nn.Module, ABC):
    """A decoder of one architecture; its loss never holds the logits of a whole batch.

    ``block`` is what the layers of the architecture take besides their sizes.
    """

    block_type: ClassVar[type[TransformerBlock]]
    learned_positions: ClassVar[bool]
    joins_texts: ClassVar[bool] = True
    """Whether :meth:`hidden` can read several texts in one row, by places and by who sees whom."""
    positions: nn.Embedding

    def __init__(
        self,
        vocab_size: int,
        seq_len: int,
        n_layer: int,
        n_head: int,
        d_model: int,
        d_ffn: int,
        tied: bool,
        soft_cap: float | None = None,
        **block: Any,
    ) -> None:
        super().__init__()
        self.vocab_size, self.seq_len, self.tied, self.soft_cap = (
            vocab_size,
            seq_len,
            tied,
            soft_cap,
        )
        self.n_layer, self.n_head, self.d_model, self.d_ffn = n_layer, n_head, d_model, d_ffn
        self.softmax: Softmax | None = None
        self.chunk_loss: ChunkLoss | None = None
        # Initial values are drawn in the order of these assignments.
        self.embedding = uninitialised_embedding(vocab_size, d_model)
        if self.learned_positions:
            self.positions = uninitialised_embedding(seq_len, d_model)
        self.blocks = nn.ModuleList(
            self.block_type(d_model, n_head, d_ffn, **block) for _ in range(n_layer)
        )
        self.ln_f = self.block_type.norm(d_model)
        self.head = None if tied else nn.Linear(d_model, vocab_size, bias=False)

    @property
    def head_weight(self) -> Tensor:
        """The weight of the head, shape VD; if tied, it is the embedding's."""
        return self.embedding.weight if self.head is None else self.head.weight

    def embedding_parameters(self) -> list[Tensor]:
        """Return the matrices that the embedding's optimizer updates: the embedding and, if not
        tied, the head."""
        return (
            [self.embedding.weight]
            if self.head is None
            else [self.embedding.weight, self.head.weight]
        )

    def initial_values(
        self, seed: int, std: "float | Initialization"
    ) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yield every parameter with its whole initial value on the CPU; parameters may be sharded
        or on ``meta``.

        Matrices are drawn from N(0, std), residual output projections from N(0, std / sqrt(2
        n_layer)), and norms are 1 [C]; or a study's own initialization fills the matrices. The
        values depend only on ``seed``, not on the device or on torch's global generator.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            value = torch.ones(parameter.shape, device="cpu")
            if value.ndim > 1:
                if isinstance(std, float):
                    value.normal_(0.0, self.initial_std(name, std), generator=generator)
                else:
                    value.fill_(math.nan)  # tells what is left as it was
                    std.fill(name, value, self, generator)
            yield parameter, value

    def initial_std(self, name: str, std: float) -> float:
        """Return the standard deviation of a matrix's initial values (see
        :meth:`initial_values`)."""
        return std / math.sqrt(2 * self.n_layer) if "_proj." in name else std

    @torch.no_grad()
    def init_weights(self, seed: int, std: "float | Initialization") -> None:
        """Set all parameters to their initial values (see :meth:`initial_values`)."""
        for parameter, value in self.initial_values(seed, std):
            parameter.copy_(value)

    @abstractmethod
    def inputs(self, tokens_BT: Tensor, places_BT: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the input of the first layer, shape BTD, followed by the positions that every
        layer takes.

        ``places_BT`` are the places of the tokens in their texts, below T; without it, each row is
        one text.
        """

    def hidden(
        self, tokens_BT: Tensor, places_BT: Tensor | None = None, sees_B1TT: Tensor | None = None
    ) -> Tensor:
        """Return the final hidden states, shape BTD.

        Where a row of tokens is not one text from its beginning, ``places_BT`` and ``sees_B1TT``
        say how its tokens belong together: see :meth:`inputs` and :meth:`TransformerBlock.forward`.
        """
        x_BTD, *positions = self.inputs(tokens_BT, places_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD, *positions, sees_B1TT=sees_B1TT)
        return self.ln_f(x_BTD)  # type: ignore[no-any-return]

    def logits(self, tokens_BT: Tensor) -> Tensor:
        """Return the logits of the next token, shape BTV; meant for tests and small inputs."""
        return cap(F.linear(self.hidden(tokens_BT), self.head_weight), self.soft_cap)

    def compile_parts(self, deterministic: bool = False) -> None:
        """Compile each layer with ``torch.compile`` and, on a GPU, the softmax of the loss, at
        their first calls.

        The compiler chooses among kernels by their time, and these may round otherwise; if
        ``deterministic``, it does not. PyTorch 2.9 has no such mode.
        """
        from torch import _inductor as inductor

        options: dict[str, Any] | None = (
            {"deterministic": True}
            if deterministic and "deterministic" in inductor.list_options()
            else None
        )
        # Few batch sizes occur. By default torch recompiles for dynamic shapes at the second one,
        # which is slower.
        for block in self.blocks:
            block.compile(dynamic=False, options=options)
        if self.head_weight.device.type == "cuda":  # on a CPU the logits stay in the cache
            self.softmax = torch.compile(by_log_softmax, dynamic=False, options=options)

    def forward(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor,
        reduction: Literal["mean", "sum", "none", "objective"] = "mean",
        observe: LogitObserver | None = None,
        z_loss: float = 0.0,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the cross-entropy in nats, a scalar, or for ``none`` of shape BT without gradient.

        For ``objective``, what training minimizes, it is two sums: that of the cross-entropy with
        ``z_loss (log Z)^2``, which can be differentiated, and that of just the cross-entropy.
        Targets of -100 are ignored. Under ``none``, ``observe`` is given the logits, chunk by
        chunk.
        """
        targets_T = targets_BT.flatten()
        if reduction == "none":
            return self.token_losses(tokens_BT, targets_T, observe).view_as(targets_BT)
        sums = self.sums(tokens_BT, targets_T, z_loss if reduction == "objective" else 0.0)
        if reduction == "objective":
            return sums
        return sums[0] if reduction == "sum" else sums[0] / (targets_BT != IGNORED).sum()

    def token_losses(
        self, tokens_BT: Tensor, targets_T: Tensor, observe: LogitObserver | None
    ) -> Tensor:
        """Return the cross-entropy of each target, shape T, without gradient (see
        :meth:`forward`)."""
        hidden_TD = self.hidden(tokens_BT).flatten(0, 1)
        return token_cross_entropy(hidden_TD, self.head_weight, targets_T, observe, self.soft_cap)

    def sums(self, tokens_BT: Tensor, targets_T: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
        """Return the sums of the cross-entropy with the z-loss, and of just the cross-entropy, in
        float32 at least."""
        hidden_TD = self.hidden(tokens_BT).flatten(0, 1)
        return sum_with_z_loss(
            hidden_TD,
            self.head_weight,
            targets_T,
            z_loss,
            self.soft_cap,
            self.softmax,
            self.chunk_loss,
        )


@dataclass(frozen=True)
class Weight:
    """One of our weights and the transformers weights whose rows it stacks.

    ``transposed`` says that transformers stores (in, out), as its Conv1D does; ``bias``, that it
    also has a bias, which our layers never have; ``shared``, that each of theirs is all of ours.
    """

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False
    bias: bool = False
    shared: bool = False


@dataclass(frozen=True)
class Family:
    """The class of an architecture's models, and how they are stored in the format of
    transformers."""

    model: type[LanguageModel]
    weights: Callable[[Any], Iterator[Weight]]
    keys: Mapping[str, str]
    """The key in config.json of each argument of the class."""
    fixed: Mapping[str, Any]
    """Keys of config.json that never change."""
    more: Callable[[Any], Mapping[str, Any]] = lambda _model: {}
    """Returns keys that follow from the model and are not read again."""
