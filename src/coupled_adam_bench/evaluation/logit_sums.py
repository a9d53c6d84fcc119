"""What is kept of the logits of held-out tokens: sums over tokens, taken chunk by chunk while the logits exist.

C: tokens of a chunk    V: rows of the head
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LogitStatistics:
    """The logits over all tokens and rows, and the mean probability that each row is given, shape (V,).

    ``sd`` is the standard deviation of all logits, ``largest`` the largest absolute value, and ``log_z_squared`` the
    mean over tokens of (log Z)^2, Z the sum of exp(logit) over the rows (Stollenwerk et al. 2026, arXiv 2601.02031).
    """

    mean: float
    sd: float
    largest: float
    log_z_squared: float
    probability: NDArray[np.float64]


class LogitSums:
    """Takes the logits of tokens chunk by chunk, and gives their statistics; all sums are in float64.

    With ``chosen_V``, it also keeps the probability that each token gives to these rows, until it is taken.
    """

    def __init__(self, chosen_V: NDArray[np.bool_] | None = None) -> None:
        self._chosen_V = chosen_V
        self._masses: list[Tensor] = []
        self._n_tokens = 0
        self._sums: dict[str, Tensor] = {}
        self._largest: Tensor | None = None

    def add(self, logits_CV: "Tensor") -> None:
        """Add the logits of a chunk, shape (C, V), which are not changed."""
        import torch

        probabilities_CV = torch.softmax(logits_CV, 1)
        max_C = logits_CV.amax(1)
        # Z is known from the largest probability: exp(max) / Z. A pass of its own would take as long as the softmax.
        log_z_C = max_C.double() - probabilities_CV.amax(1).double().log()
        probability_V = probabilities_CV.sum(0).double()
        if self._chosen_V is not None:
            with torch.autocast(logits_CV.device.type, enabled=False):  # which would multiply in bfloat16
                self._masses.append(probabilities_CV @ torch.from_numpy(self._chosen_V).to(probabilities_CV))
        # The spread around each token's mean, in the memory of the probabilities: var_mean takes eight times as long.
        mean_C = logits_CV.mean(1)
        deviations_CV = torch.sub(logits_CV, mean_C[:, None], out=probabilities_CV)
        variance_C = torch.linalg.vector_norm(deviations_CV, dim=1).double().square() / logits_CV.shape[1]
        mean_C = mean_C.double()
        found = {
            "probability_V": probability_V,
            "mean": mean_C.sum(),
            "square": (variance_C + mean_C.square()).sum(),
            "log_z_squared": log_z_C.square().sum(),
        }
        # Numbers stay on the device until the end: to fetch them would stop a GPU at every chunk.
        self._sums = {name: value + self._sums[name] for name, value in found.items()} if self._sums else found
        largest = torch.maximum(max_C.max(), -logits_CV.min())
        self._largest = largest if self._largest is None else torch.maximum(largest, self._largest)
        self._n_tokens += len(logits_CV)

    def take_masses(self) -> NDArray[np.float64]:
        """Return the probability of the chosen rows at each token since the last call, shape (tokens,)."""
        masses, self._masses = self._masses, []
        return np.concatenate([mass.double().cpu().numpy() for mass in masses])

    def statistics(self) -> LogitStatistics:
        """Return the statistics of all that was added, which must be something."""
        assert self._largest is not None
        of_tokens = {name: value.cpu().numpy() / self._n_tokens for name, value in self._sums.items()}
        mean, square = float(of_tokens["mean"]), float(of_tokens["square"])
        return LogitStatistics(
            mean=mean,
            sd=math.sqrt(max(square - mean**2, 0.0)) if math.isfinite(square) else math.nan,
            largest=self._largest.item(),
            log_z_squared=float(of_tokens["log_z_squared"]),
            probability=of_tokens["probability_V"],
        )
