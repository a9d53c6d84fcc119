"""What is kept of the logits of held-out tokens: their statistics, and how probable each token is
by its frequency.

Sums over tokens are taken chunk by chunk while the logits exist; calibration compares them with the
text.

C: tokens of a chunk    V: tokens of the vocabulary, rows of the head    P: pieces of windows
G: held-out documents
"""

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embedding_geometry.frequency import frequency_bins

if TYPE_CHECKING:
    from torch import Tensor


class LogitSums:
    """Takes the logits of tokens chunk by chunk, and gives their statistics; all sums are in
    float64.

    With ``chosen_V``, it also keeps the probability that each token gives to these rows, until it
    is taken.
    """

    def __init__(self, chosen_V: NDArray[np.bool_] | None = None) -> None:
        self._chosen_V = chosen_V
        self._masses: list[Tensor] = []
        self._n_tokens = 0
        self._sums: dict[str, Tensor] = {}
        self._largest: Tensor | None = None

    def add(self, logits_CV: "Tensor", rows_T: "Tensor | None" = None) -> None:
        """Add the logits of a chunk, shape (C, V), which are not changed; ``rows_T`` is the row of
        each token.

        Without ``rows_T`` each row is that of one token.
        """
        import torch

        tokens_C = None
        if rows_T is not None:
            ones_T = torch.ones_like(rows_T, dtype=torch.float64)
            tokens_C = ones_T.new_zeros(len(logits_CV)).index_add_(0, rows_T, ones_T)

        def total(values: "Tensor") -> "Tensor":
            """Return the sum over tokens of a number of their rows, or of one for each column."""
            return (
                values.sum(0) if tokens_C is None else torch.tensordot(tokens_C, values.double(), 1)
            )

        probabilities_CV = torch.softmax(logits_CV, 1)
        max_C = logits_CV.amax(1)
        # Z is known from the largest probability: exp(max) / Z. A pass of its own would take as
        # long as the softmax.
        log_z_C = max_C.double() - probabilities_CV.amax(1).double().log()
        probability_V = total(probabilities_CV).double()
        if self._chosen_V is not None:
            with torch.autocast(logits_CV.device.type, enabled=False):
                # autocast would multiply in bfloat16.
                mass_C = probabilities_CV @ torch.from_numpy(self._chosen_V).to(probabilities_CV)
            self._masses.append(mass_C if rows_T is None else mass_C[rows_T])
        # The spread around each token's mean, in the memory of the probabilities: var_mean takes
        # eight times as long.
        mean_C = logits_CV.mean(1)
        deviations_CV = torch.sub(logits_CV, mean_C[:, None], out=probabilities_CV)
        variance_C = (
            torch.linalg.vector_norm(deviations_CV, dim=1).double().square() / logits_CV.shape[1]
        )
        mean_C = mean_C.double()
        found = {
            "probability_V": probability_V,
            "mean": total(mean_C),
            "square": total(variance_C + mean_C.square()),
            "log_z_squared": total(log_z_C.square()),
        }
        # Numbers stay on the device until the end: to fetch them would stop a GPU at every chunk.
        self._sums = (
            {name: value + self._sums[name] for name, value in found.items()}
            if self._sums
            else found
        )
        if tokens_C is None:
            largest = torch.maximum(max_C.max(), -logits_CV.min())
        else:  # of the rows that are those of a token
            largest = torch.maximum(max_C, -logits_CV.amin(1)).masked_fill(tokens_C == 0, 0).max()
        self._largest = largest if self._largest is None else torch.maximum(largest, self._largest)
        self._n_tokens += len(logits_CV if rows_T is None else rows_T)

    def take_masses(self) -> NDArray[np.float64]:
        """Return the probability of the chosen rows at each token since the last call, shape
        (tokens,)."""
        masses, self._masses = self._masses, []
        return np.concatenate([mass.double().cpu().numpy() for mass in masses])

    def statistics(self) -> tuple[dict[str, float], NDArray[np.float64]]:
        """Return the statistics of all that was added, and the mean probability that each row is
        given, shape (V,).

        Over all tokens and rows, they are the mean logit, the standard deviation and the largest
        absolute value; ``log_z_squared`` is the mean over tokens of (log Z)^2, Z the sum of
        exp(logit) over the rows (Stollenwerk et al. 2026, arXiv 2601.02031).
        """
        assert self._largest is not None
        of_tokens = {
            name: value.cpu().numpy() / self._n_tokens for name, value in self._sums.items()
        }
        mean, square = float(of_tokens["mean"]), float(of_tokens["square"])
        values = {
            "logit_mean": mean,
            "logit_sd": (
                math.sqrt(max(square - mean**2, 0.0)) if math.isfinite(square) else math.nan
            ),
            "logit_max": self._largest.item(),
            "log_z_squared": float(of_tokens["log_z_squared"]),
        }
        return values, of_tokens["probability_V"]


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """A group of tokens in held-out text: the mean over tokens, and the whole group as if it were
    one token.

    ``mean_log_ratio`` is the mean of log(p / f) over the ``n_occurring`` tokens that are in the
    text, where p is the mean probability of a token over all positions, and f the share of
    positions at which it is the target (Kar 2026, arXiv 2609.37535). ``pooled_log_ratio`` is the
    logarithm of sum p over sum f, over all tokens of the group. Both are NaN if none of the tokens
    is in the text.
    """

    n_tokens: int
    n_occurring: int
    mean_log_ratio: float
    pooled_log_ratio: float


def calibration(
    predicted_V: Floats, counts_V: NDArray[np.int64], chosen_V: NDArray[np.bool_]
) -> Calibration:
    """Return the calibration of the chosen tokens.

    ``predicted_V`` are the mean probabilities, ``counts_V`` how often each token is the target. A
    token of probability 0 makes the mean minus infinity.
    """
    n_targets = counts_V.sum()
    predicted, counts = predicted_V[chosen_V], counts_V[chosen_V]
    occurs = counts > 0
    if not occurs.any():
        return Calibration(len(counts), 0, math.nan, math.nan)
    with np.errstate(divide="ignore"):
        log_ratios = np.log(predicted[occurs]) - np.log(counts[occurs] / n_targets)
        pooled = np.log(predicted.sum()) - np.log(counts.sum() / n_targets)
    return Calibration(len(counts), int(occurs.sum()), float(log_ratios.mean()), float(pooled))


def pooled_error(documents_P: NDArray[np.int64], predicted_P: Floats, counts_P: Floats) -> float:
    """Return the standard error of a pooled log ratio over held-out documents, by the jackknife.

    A piece of text is of one document; ``predicted_P`` and ``counts_P`` are the sums over it of the
    group's probability and of its targets. NaN if one document has all targets of the group, or its
    probability is 0.
    """
    _, place_P = np.unique(documents_P, return_inverse=True)
    predicted_G, counts_G = np.bincount(place_P, predicted_P), np.bincount(place_P, counts_P)
    n = len(counts_G)
    with np.errstate(divide="ignore", invalid="ignore"):
        without_G = np.log((predicted_G.sum() - predicted_G) / (counts_G.sum() - counts_G))
        whole = np.log(predicted_G.sum() / counts_G.sum())
        error = math.sqrt((n - 1) / n * float(((without_G - whole) ** 2).sum()))
    return error if math.isfinite(error) else math.nan


def calibration_curve(
    predicted_V: Floats, counts_V: NDArray[np.int64], unigram_counts: NDArray[np.integer[Any]]
) -> dict[str, list[Any]]:
    """Return the calibration of tokens in bins of their count in the training text, which is
    ``unigram_counts``.

    The bins are those of :func:`frequency_bins`, with the fields of :class:`Calibration`; None is
    what is not finite. Bins by the count in the held-out text itself would choose the tokens that
    are there more often than expected.
    """
    curve: dict[str, list[Any]] = {"count": []}
    curve |= {field.name: [] for field in fields(Calibration)}
    for count, chosen_V in frequency_bins(unigram_counts):
        curve["count"].append(count)
        for name, value in vars(calibration(predicted_V, counts_V, chosen_V)).items():
            curve[name].append(finite(value))
    return curve


def finite(value: Any) -> Any:
    """Return a value for JSON: None is a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
