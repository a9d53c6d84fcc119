"""The metrics of the tables, declared once: the arrow, the direction of the test and the bolding follow from here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A column of the tables.

    ``name`` and ``task`` identify its rows in ``results.csv``; ``latex`` and ``html`` are its symbol, already escaped.
    """

    name: str
    task: str
    latex: str
    html: str
    unit: str
    higher_is_better: bool
    digits: int
    description: str


# Definitions: paper.md section 3 of the design; arrows and digits as in the paper's tables.
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("loss", "test", r"$\mathcal{L}$", "<i>L</i>", "nat/token", False, 2, "cross-entropy on held-out tokens"),
        Metric("acc", "average", r"$\mathrm{Acc}$", "Acc", "1", True, 3, "mean accuracy over the downstream tasks"),
        Metric("isotropy", "embeddings", r"$\mathrm{Iso}$", "Iso", "1", True, 2, "isotropy of the embeddings"),
        Metric("mean_norm", "embeddings", r"$\|\mu\|$", "‖<i>μ</i>‖", "1", False, 2, "norm of the mean embedding"),
        Metric(
            "mean_norm_ratio",
            "embeddings",
            r"$\|\mu\|^{\mathrm{r}}$",
            "‖<i>μ</i>‖<sup>r</sup>",
            "1",
            False,
            2,
            "norm of the mean embedding over the mean norm of the embeddings",
        ),
        Metric(
            "r_bar", "word_similarity", r"$\bar{r}$", "<i>r̄</i>", "percent", True, 0, "mean word-similarity correlation"
        ),
        Metric(
            "rho",
            "embeddings",
            r"$\rho$",
            "<i>ρ</i>",
            "1",
            True,
            2,
            "correlation of embedding norm and log probability",
        ),
        Metric(
            "kappa", "embeddings", r"$\kappa$", "<i>κ</i>", "percent", True, 1, "smallest over largest singular value"
        ),
    )
}

# Of the task `theory`, which only studies with `evaluation.theory` measure; no columns of tables.
THEORY_METRICS = (
    "head_gradient_sum", "update_sum", "second_moment_slope", "second_moment_r_squared", "drift_input_share",
)  # fmt: skip

# Columns of results.csv, in order.
RESULT_COLUMNS = (
    "study", "n_params", "n_tokens", "optimizer", "seed", "task", "metric", "value", "unit", "protocol",
)  # fmt: skip
