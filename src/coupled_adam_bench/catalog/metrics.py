"""The metrics, declared once: the arrow, the direction of the test and the bolding follow from here."""

from dataclasses import dataclass
from math import inf
from typing import Any

from coupled_adam_bench.catalog.bands import BANDS, Band


@dataclass(frozen=True)
class Metric:
    """Something that is measured in every cell, and that tables can have as a column.

    ``name`` and ``task`` identify its rows in ``results.csv``, ``stage`` is the stage of evaluation that measures it;
    ``latex`` and ``html`` are its symbol, already escaped; no value lies outside ``low`` and ``high``.
    """

    name: str
    task: str
    stage: str
    latex: str
    html: str
    unit: str
    higher_is_better: bool
    digits: int
    description: str
    low: float
    high: float


# Arrows and digits are those of the paper's tables. A correlation or a ratio of floats may pass its bound by rounding.
_ROUNDING = 1e-9


def _band_metric(band: Band, name: str, symbol: tuple[str, str], description: str, **others: Any) -> "Metric":
    """Return a metric of a band, whose ``symbol`` in LaTeX and HTML has the band as its index."""
    index = band.name.replace("_", " ")
    latex, html = symbol
    return Metric(
        name=name,
        task="test",
        stage="test_loss",
        latex=rf"${latex}_\mathrm{{{index.replace(' ', '~')}}}$",
        html=f"{html}<sub>{index}</sub>",
        digits=2,
        description=f"{description} of the {band.label} of the training text",
        high=inf,
        **others,
    )


def _band_loss(band: Band) -> "Metric":
    symbol, description = (r"\mathcal{L}", "<i>L</i>"), "cross-entropy on held-out tokens"
    return _band_metric(band, band.metric, symbol, description, unit="nat/token", higher_is_better=False, low=0.0)


# What is best at 0 has the direction in which it errs in practice: rare tokens get too little probability.
def _band_calibrations(band: Band) -> "tuple[Metric, Metric]":
    signed: Any = {"unit": "nat", "higher_is_better": True, "low": -inf}
    mean = (r"\overline{\log p/f}", "mean log <i>p</i>/<i>f</i>")
    pooled = (r"\log \bar{p}/\bar{f}", "log <i>p̄</i>/<i>f̄</i>")
    return (
        _band_metric(
            band, band.calibration, mean, "mean of log(mean probability / frequency) over held-out tokens", **signed
        ),
        _band_metric(
            band, band.pooled_calibration, pooled, "log(probability / share) of all held-out tokens together", **signed
        ),
    )


def _logits(name: str, latex: str, html: str, description: str, **others: Any) -> "Metric":
    """Return a metric of the logits of held-out tokens, after Stollenwerk et al. 2026 (arXiv 2601.02031)."""
    others = {"higher_is_better": False, "low": 0.0} | others
    return Metric(
        name, "test", "test_loss", latex, html, unit="1", digits=2, description=description, high=inf, **others
    )


_LOGITS = (
    # Where the logits drift, they fall; with a centered head their mean is 0.
    _logits("logit_mean", r"$\overline{z}$", "<i>z̄</i>", "mean of all logits", higher_is_better=True, low=-inf),
    _logits("logit_sd", r"$\mathrm{sd}\,z$", "sd <i>z</i>", "standard deviation of all logits"),
    _logits("logit_max", r"$\max |z|$", "max |<i>z</i>|", "largest absolute value of a logit"),
    _logits("log_z_squared", r"$\overline{\log^2 Z}$", "mean log² <i>Z</i>", "mean square of the log-partition sum"),
)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            name="loss",
            task="test",
            stage="test_loss",
            latex=r"$\mathcal{L}$",
            html="<i>L</i>",
            unit="nat/token",
            higher_is_better=False,
            digits=2,
            description="cross-entropy on held-out tokens",
            low=0.0,
            high=inf,
        ),
        Metric(
            name="bits_per_byte",
            task="test",
            stage="test_loss",
            latex=r"$\mathrm{bpb}$",
            html="bpb",
            unit="bit/byte",
            higher_is_better=False,
            digits=3,
            description="bits per byte of held-out text",
            low=0.0,
            high=inf,
        ),
        *map(_band_loss, BANDS),
        *(metric for band in BANDS for metric in _band_calibrations(band)),
        *_LOGITS,
        Metric(
            name="acc",
            task="average",
            stage="downstream",
            latex=r"$\mathrm{Acc}$",
            html="Acc",
            unit="1",
            higher_is_better=True,
            digits=3,
            description="mean accuracy over the downstream tasks",
            low=0.0,
            high=1.0,
        ),
        Metric(
            name="isotropy",
            task="embeddings",
            stage="embeddings",
            latex=r"$\mathrm{Iso}$",
            html="Iso",
            unit="1",
            higher_is_better=True,
            digits=2,
            description="isotropy of the embeddings",
            low=0.0,
            high=1.0 + _ROUNDING,
        ),
        Metric(
            name="isotropy_trimmed",
            task="embeddings",
            stage="embeddings",
            latex=r"$\mathrm{Iso}_{99.9}$",
            html="Iso<sub>99.9</sub>",
            unit="1",
            higher_is_better=True,
            digits=2,
            description="isotropy of the embeddings without the longest 0.1 %",
            low=0.0,
            high=1.0 + _ROUNDING,
        ),
        Metric(
            name="mean_norm",
            task="embeddings",
            stage="embeddings",
            latex=r"$\|\mu\|$",
            html="‖<i>μ</i>‖",
            unit="1",
            higher_is_better=False,
            digits=2,
            description="norm of the mean embedding",
            low=0.0,
            high=inf,
        ),
        Metric(
            name="mean_norm_ratio",
            task="embeddings",
            stage="embeddings",
            latex=r"$\|\mu\|^{\mathrm{r}}$",
            html="‖<i>μ</i>‖<sup>r</sup>",
            unit="1",
            higher_is_better=False,
            digits=2,
            description="norm of the mean embedding over the mean norm of the embeddings",
            low=0.0,
            high=1.0 + _ROUNDING,
        ),
        Metric(
            name="mean_length",
            task="embeddings",
            stage="embeddings",
            latex=r"$\overline{\|e\|}$",
            html="mean ‖<i>e</i>‖",
            unit="1",
            higher_is_better=False,
            digits=2,
            description="mean norm of the embeddings",
            low=0.0,
            high=inf,
        ),
        Metric(
            name="r_bar",
            task="word_similarity",
            stage="embeddings",
            latex=r"$\bar{r}$",
            html="<i>r̄</i>",
            unit="percent",
            higher_is_better=True,
            digits=0,
            description="mean word-similarity correlation",
            low=-100.0 - _ROUNDING,
            high=100.0 + _ROUNDING,
        ),
        Metric(
            name="rho",
            task="embeddings",
            stage="embeddings",
            latex=r"$\rho$",
            html="<i>ρ</i>",
            unit="1",
            higher_is_better=True,
            digits=2,
            description="correlation of embedding norm and log probability",
            low=-1.0 - _ROUNDING,
            high=1.0 + _ROUNDING,
        ),
        Metric(
            name="mean_projection_correlation",
            task="embeddings",
            stage="embeddings",
            latex=r"$\mathrm{corr}(e \cdot \mu, \log p)$",
            html="corr(<i>e</i> · <i>μ</i>, log <i>p</i>)",
            unit="1",
            higher_is_better=True,
            digits=2,
            description="correlation of the projection on the mean and log probability",
            low=-1.0 - _ROUNDING,
            high=1.0 + _ROUNDING,
        ),
        Metric(
            name="kappa",
            task="embeddings",
            stage="embeddings",
            latex=r"$\kappa$",
            html="<i>κ</i>",
            unit="percent",
            higher_is_better=True,
            digits=1,
            description="smallest over largest singular value",
            low=0.0,
            high=100.0 + _ROUNDING,
        ),
        Metric(
            name="mean_cosine",
            task="embeddings",
            stage="embeddings",
            latex=r"$\overline{\cos}$",
            html="mean cos",
            unit="1",
            higher_is_better=False,
            digits=2,
            description="mean cosine of two embeddings",
            low=-1.0 - _ROUNDING,
            high=1.0 + _ROUNDING,
        ),
        Metric(
            name="effective_rank",
            task="embeddings",
            stage="embeddings",
            latex=r"$\mathrm{erank}$",
            html="erank",
            unit="1",
            higher_is_better=True,
            digits=0,
            description="effective rank: exponential of the entropy of the singular values",
            low=0.0,
            high=inf,
        ),
        Metric(
            name="participation_ratio",
            task="embeddings",
            stage="embeddings",
            latex=r"$\mathrm{PR}$",
            html="PR",
            unit="1",
            higher_is_better=True,
            digits=0,
            description="participation ratio: how many directions share the squared norm",
            low=0.0,
            high=inf,
        ),
    )
}

# Those of the task `theory`, which only studies with `evaluation.theory` measure; no columns of tables.
THEORY_METRICS = (
    "head_gradient_sum", "update_sum", "second_moment_slope", "second_moment_r_squared", "drift_input_share",
)  # fmt: skip


def columns_of(stage: str) -> tuple[tuple[str, str, str], ...]:
    """Return task, metric and unit of the metrics that a stage measures."""
    return tuple((metric.task, metric.name, metric.unit) for metric in METRICS.values() if metric.stage == stage)


# Columns of results.csv, in order.
RESULT_COLUMNS = (
    "study", "n_params", "n_tokens", "optimizer", "seed", "task", "metric", "value", "unit", "protocol", "cell",
    "model", "data",
)  # fmt: skip
