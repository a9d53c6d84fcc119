"""Numbers of the paper, to stand beside one's own: Stollenwerk and Stollenwerk, ACL 2025, arXiv 2502.08441.

It has only the numbers that are known to us: rows at 20B tokens of Table 1, and two sizes of Table 2. They hold
for the paper's data (OpenWebText, SlimPajama) and its authors' code.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """Means of one row of a table of the paper, by metric, as rounded there."""

    source: str
    tokens_label: str
    model_label: str
    optimizer: str
    means: dict[str, float]


PUBLISHED = tuple(
    Published(source, tokens, model, optimizer, dict(zip(metrics, values, strict=True)))
    for source, metrics, rows in (
        (
            "Table 1",
            ("loss", "isotropy", "mean_norm_ratio", "r_bar"),
            (
                ("20B", "125M", "adamw", (3.03, 0.10, 0.82, 5)),
                ("20B", "125M", "coupled_adam", (2.97, 0.83, 0.03, 57)),
                ("20B", "355M", "adamw", (2.79, 0.25, 0.82, 5)),
                ("20B", "355M", "coupled_adam", (2.75, 0.95, 0.02, 57)),
                ("20B", "760M", "adamw", (2.68, 0.28, 0.73, 3)),
                ("20B", "760M", "coupled_adam", (2.65, 0.94, 0.01, 58)),
            ),
        ),
        (
            "Table 2",
            ("loss", "acc", "isotropy"),
            (
                ("26B", "1.3B", "adamw", (2.46, 0.397, 0.22)),
                ("26B", "1.3B", "coupled_adam", (2.44, 0.399, 0.94)),
                ("210B", "2.6B", "adamw", (2.17, 0.425, 0.22)),
                ("210B", "2.6B", "coupled_adam", (2.16, 0.428, 0.97)),
            ),
        ),
    )
    for tokens, model, optimizer, values in rows
)
