"""Section of a study: its own embedding metrics."""

import html
from math import inf
from typing import Annotated

from pydantic import Field

from coupled_adam_bench.store.markup import latex_escape
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.catalog.stages import OWN_METRICS_STAGE
from coupled_adam_bench.study.config.base import DottedPath, Label, Line, Settings


class OwnMetric(Settings):
    """A metric of the embedding matrix that the study brings itself: a function and what tables need (docs/howto.md).

    The function is called with the matrix, a float64 array of shape (vocabulary, width), and returns a number. If it
    has a parameter ``unigram_counts``, it is given how often each token is in the training text.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
    """Name in results, and in the columns of tables."""
    path: DottedPath
    """Module and function, of an installed package or of a file in the folder in which the study is started."""
    symbol: Label
    """What the head of a table's column prints."""
    higher_is_better: bool
    """Direction of the test, of the arrow in the table's head and of the bold type."""
    digits: int = Field(2, ge=0, le=6)
    """Decimals in tables."""
    unit: Line = "1"
    description: Line = ""
    """What it measures, in a few words."""

    def declared(self) -> Metric:
        """Return the metric as the catalogue declares its own."""
        return Metric(
            name=self.name,
            task="embeddings",
            stage=OWN_METRICS_STAGE,
            latex=latex_escape(self.symbol),
            html=html.escape(self.symbol),
            unit=self.unit,
            higher_is_better=self.higher_is_better,
            digits=self.digits,
            description=self.description or self.name,
            low=-inf,
        )
