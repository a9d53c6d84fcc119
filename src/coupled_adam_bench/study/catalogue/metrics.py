"""The metrics and the bands of frequency, declared once: arrows, directions of tests and bolding
follow from here."""

from dataclasses import dataclass
from math import inf
from typing import Any

from coupled_adam_bench.study.catalogue.bands import BANDS, Band
from embedding_geometry.rows import UNITS


@dataclass(frozen=True)
class Metric:
    """Something that is measured in every cell, and that tables can have as a column.

    ``name`` and ``task`` identify its rows in ``results.csv``, ``stage`` is the stage of evaluation
    that measures it; ``latex`` and ``html`` are its symbol, already escaped; no value lies outside
    ``low`` and ``high``.

    A metric that has no better side, with ``higher_is_better`` None, is best at a value.
    ``best_at`` is this number or, where it depends on the text, the name under which
    ``results.csv`` has it for each cell. Such values are compared by their distances from it.
    """

    name: str
    task: str
    stage: str
    latex: str
    html: str
    description: str
    higher_is_better: bool | None = None
    best_at: float | str | None = None
    unit: str = "1"
    digits: int = 2
    low: float = 0.0
    high: float = inf

    def __post_init__(self) -> None:
        """Refuse a metric without a direction, or with two."""
        assert (self.higher_is_better is None) != (self.best_at is None), self.name

    @property
    def larger_wins(self) -> bool:
        """Whether of two numbers that are compared the larger one is better; of two distances it is
        the smaller."""
        return bool(self.higher_is_better)

    @property
    def better(self) -> str:
        """Which values are better, in words that "is better" follows."""
        if isinstance(self.best_at, str):
            return "nearer to what the frequencies of the training text have"
        if self.best_at is not None:
            return f"nearer to {self.best_at:g}"
        return "higher" if self.higher_is_better else "lower"

    @property
    def arrow(self) -> str:
        """The sign of the better side, or where the metric is best, in a table's head."""
        if self.best_at is not None:
            return "→ text" if isinstance(self.best_at, str) else f"→ {self.best_at:g}"
        return "↑" if self.higher_is_better else "↓"

    @property
    def latex_arrow(self) -> str:
        """The same in LaTeX."""
        if self.best_at is not None:
            return r"$\to$ text" if isinstance(self.best_at, str) else rf"$\to {self.best_at:g}$"
        return r"$\uparrow$" if self.higher_is_better else r"$\downarrow$"


# Arrows and digits are those of the paper's tables. A correlation or a ratio of floats may pass its
# bound by rounding.
_ROUNDING = 1e-9
_ONE = 1.0 + _ROUNDING
_LOSS = r"\mathcal{L}", "<i>L</i>", "cross-entropy on held-out tokens"
"""Symbol and description of the loss, which its bands have with an index."""


def _test(name: str, latex: str, html: str, description: str, **others: Any) -> Metric:
    """Return a metric of the held-out tokens."""
    return Metric(name, "test", "test_loss", latex, html, description, **others)


def _loss(name: str, latex: str, html: str, description: str) -> Metric:
    return _test(name, latex, html, description, higher_is_better=False, unit="nat/token")


def _embeddings(name: str, latex: str, html: str, description: str, **others: Any) -> Metric:
    """Return a metric of the matrix of embeddings."""
    unit = UNITS.get(name, "1")
    return Metric(name, "embeddings", "embeddings", latex, html, description, unit=unit, **others)


def _isotropy(name: str, latex: str, index: str, rows: str) -> Metric:
    """Return an isotropy, of the embeddings or of what is made of their ``rows``, as the index of
    its symbol says."""
    html = f"Iso<sub>{index}</sub>" if index else "Iso"
    description = f"isotropy of the embeddings{rows}"
    symbol = rf"$\mathrm{{Iso}}{latex}$"
    return _embeddings(name, symbol, html, description, higher_is_better=True, high=_ONE)


def _of_band(band: Band, latex: str, html: str, description: str) -> tuple[str, str, str]:
    """Return symbol and description of a metric of a band, which is the index of the symbol."""
    index = band.name.replace("_", " ")
    return (
        rf"${latex}_\mathrm{{{index.replace(' ', '~')}}}$",
        f"{html}<sub>{index}</sub>",
        f"{description} of the {band.label} of the training text",
    )


def _band_loss(band: Band) -> Metric:
    return _loss(band.metric, *_of_band(band, *_LOSS))


def of_text(name: str) -> str:
    """Return the name in ``results.csv`` of a calibration that a model with the training text's
    frequencies has.

    On held-out text it is not 0: rare tokens of the training text come less often there.
    """
    return f"{name}_of_text"


def _band_calibrations(band: Band) -> tuple[Metric, Metric]:
    mean = _of_band(
        band,
        r"\overline{\log p/f}",
        "mean log <i>p</i>/<i>f</i>",
        "mean of log(mean probability / frequency) over held-out tokens",
    )
    pooled = _of_band(
        band,
        r"\log \bar{p}/\bar{f}",
        "log <i>p̄</i>/<i>f̄</i>",
        "log(probability / share) of all held-out tokens together",
    )
    both = ((band.calibration, mean), (band.pooled_calibration, pooled))
    first, second = (
        _test(name, *texts, best_at=of_text(name), unit="nat", low=-inf) for name, texts in both
    )
    return first, second


# Those of the logits of held-out tokens, after Stollenwerk et al. 2026 (arXiv 2601.02031).
_LOGITS = (
    # With a centered head the mean is 0; where the logits drift, it leaves it.
    _test("logit_mean", r"$\overline{z}$", "<i>z̄</i>", "mean of all logits", best_at=0.0, low=-inf),
    _test(
        "logit_sd",
        r"$\mathrm{sd}\,z$",
        "sd <i>z</i>",
        "standard deviation of all logits",
        higher_is_better=False,
    ),
    _test(
        "logit_max",
        r"$\max |z|$",
        "max |<i>z</i>|",
        "largest absolute value of a logit",
        higher_is_better=False,
    ),
    _test(
        "log_z_squared",
        r"$\overline{\log^2 Z}$",
        "mean log² <i>Z</i>",
        "mean square of the log-partition sum",
        higher_is_better=False,
    ),
)
_EMBEDDINGS = (
    _isotropy("isotropy", "", "", ""),
    _isotropy("isotropy_trimmed", "_{99.9}", "99.9", " without the longest 0.1 %"),
    _isotropy("isotropy_centered", r"_{\mu = 0}", "<i>μ</i> = 0", " minus their mean"),
    _isotropy(
        "isotropy_common_length",
        r"_{\mathrm{rms} = 1}",
        "rms = 1",
        ", scaled to a root mean square length of 1",
    ),
    _isotropy(
        "isotropy_centered_common_length",
        r"_{\mu = 0,\, \mathrm{rms} = 1}",
        "<i>μ</i> = 0, rms = 1",
        " minus their mean, scaled to a root mean square length of 1",
    ),
    _embeddings(
        "mean_norm",
        r"$\|\mu\|$",
        "‖<i>μ</i>‖",
        "norm of the mean embedding",
        higher_is_better=False,
    ),
    _embeddings(
        "mean_norm_ratio",
        r"$\|\mu\|^{\mathrm{r}}$",
        "‖<i>μ</i>‖<sup>r</sup>",
        "norm of the mean embedding over the mean norm of the embeddings",
        higher_is_better=False,
        high=_ONE,
    ),
    _embeddings(
        "mean_length",
        r"$\overline{\|e\|}$",
        "mean ‖<i>e</i>‖",
        "mean norm of the embeddings",
        higher_is_better=False,
    ),
    Metric(
        "r_bar",
        "word_similarity",
        "embeddings",
        r"$\bar{r}$",
        "<i>r̄</i>",
        "mean word-similarity correlation",
        higher_is_better=True,
        unit=UNITS["r_bar"],
        digits=0,
        low=-100.0 - _ROUNDING,
        high=100.0 + _ROUNDING,
    ),
    _embeddings(
        "rho",
        r"$\rho$",
        "<i>ρ</i>",
        "correlation of embedding norm and log probability",
        higher_is_better=True,
        low=-_ONE,
        high=_ONE,
    ),
    _embeddings(
        "mean_projection_correlation",
        r"$\mathrm{corr}(e \cdot \mu, \log p)$",
        "corr(<i>e</i> · <i>μ</i>, log <i>p</i>)",
        "correlation of the projection on the mean and log probability",
        higher_is_better=True,
        low=-_ONE,
        high=_ONE,
    ),
    _embeddings(
        "kappa",
        r"$\kappa$",
        "<i>κ</i>",
        "smallest over largest singular value",
        higher_is_better=True,
        digits=1,
        high=100.0 + _ROUNDING,
    ),
    _embeddings(
        "mean_cosine",
        r"$\overline{\cos}$",
        "mean cos",
        "mean cosine of two embeddings",
        higher_is_better=False,
        low=-_ONE,
        high=_ONE,
    ),
    _embeddings(
        "effective_rank",
        r"$\mathrm{erank}$",
        "erank",
        "effective rank: exponential of the entropy of the singular values",
        higher_is_better=True,
        digits=0,
    ),
    _embeddings(
        "participation_ratio",
        r"$\mathrm{PR}$",
        "PR",
        "participation ratio: how many directions share the squared norm",
        higher_is_better=True,
        digits=0,
    ),
)
_ALL_METRICS: tuple[Metric, ...] = (
    _loss("loss", f"${_LOSS[0]}$", *_LOSS[1:]),
    _test(
        "bits_per_byte",
        r"$\mathrm{bpb}$",
        "bpb",
        "bits per byte of held-out text",
        higher_is_better=False,
        unit="bit/byte",
        digits=3,
    ),
    *map(_band_loss, BANDS),
    *(metric for band in BANDS for metric in _band_calibrations(band)),
    *_LOGITS,
    Metric(
        "acc",
        "average",
        "downstream",
        r"$\mathrm{Acc}$",
        "Acc",
        "mean accuracy over the downstream tasks",
        higher_is_better=True,
        digits=3,
        high=1.0,
    ),
    *_EMBEDDINGS,
)
METRICS = {metric.name: metric for metric in _ALL_METRICS}
LOSS = METRICS["loss"]

HELD_OUT_SIZES = ("n_predicted_tokens", "n_documents")
"""The size of the held-out text under the task ``test``: its targets, and the documents that they
are of."""
FEW_DOCUMENTS = 100
"""Below so many held-out documents, the report and preparation say that they are few; a choice of
ours."""


def columns_of(stage: str) -> tuple[tuple[str, str, str], ...]:
    """Return task, metric and unit of the metrics that a stage measures."""
    return tuple(
        (metric.task, metric.name, metric.unit)
        for metric in METRICS.values()
        if metric.stage == stage
    )


RESULT_COLUMNS = {
    "study": "the name of the study",
    "n_params": "the number of parameters, a tied embedding counted once",
    "n_tokens": "the number of training tokens",
    "optimizer": "the key of the optimizer of the embedding",
    "seed": "the seed of the weights and of the order of the data",
    "task": "what was measured: test, embeddings, a set of word pairs or a downstream task",
    "metric": "which number of it",
    "value": "the number; NaN, in JSON null, where it is missing or undefined",
    "unit": "its unit, 1 for a pure number",
    "protocol": "the protocol and every setting that departs from it",
    "cell": "the id of the cell",
    "model": "the name of the model",
    "data": "the id of the data",
}
"""The columns of results.csv, in their order, with what they are."""
