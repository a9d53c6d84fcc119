"""GPT-2 as the paper's small scale trains it: exact GELU and learned positions [P][C].

Shapes: B sequences, T tokens, D = d_model.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from coupled_adam_bench.models.base import LanguageModel, TransformerBlock


class GPT2Block(TransformerBlock):
    """A layer with an MLP of two matrices and GELU."""

    def __init__(self, d_model: int, n_head: int, d_ffn: int) -> None:
        super().__init__(d_model, n_head, d_ffn)
        self.mlp_fc = nn.Linear(d_model, d_ffn, bias=False)
        self.mlp_proj = nn.Linear(d_ffn, d_model, bias=False)

    def mlp(self, x_BTD: Tensor) -> Tensor:
        """Return ``mlp_proj(gelu(mlp_fc(x)))``, shape BTD."""
        return self.mlp_proj(F.gelu(self.mlp_fc(x_BTD)))  # type: ignore[no-any-return]


class GPT2(LanguageModel):
    """GPT-2: positions are learned and added to the embedding."""

    block_type = GPT2Block
    learned_positions = True

    def inputs(self, tokens_BT: Tensor, places_BT: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the sum of the embeddings of tokens and positions, shape BTD."""
        positions = self.positions.weight[: tokens_BT.shape[1]] if places_BT is None else self.positions(places_BT)
        return (self.embedding(tokens_BT) + positions,)
