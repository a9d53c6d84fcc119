"""The metrics, declared once: the arrow, the direction of the test and the bolding follow from here."""

from dataclasses import dataclass
from math import inf

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


def _band_loss(band: Band) -> "Metric":
    index = band.name.replace("_", " ")
    return Metric(
        name=band.metric,
        task="test",
        stage="test_loss",
        latex=rf"$\mathcal{{L}}_\mathrm{{{index.replace(' ', '~')}}}$",
        html=f"<i>L</i><sub>{index}</sub>",
        unit="nat/token",
        higher_is_better=False,
        digits=2,
        description=f"cross-entropy on held-out tokens of the {band.label} of the training text",
        low=0.0,
        high=inf,
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
