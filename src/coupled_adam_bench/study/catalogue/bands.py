"""The bands of frequency of the test loss, declared once."""

from dataclasses import dataclass


# The frequency bands of the test loss are shares of the training text, from its rarest tokens on.
# The paper's claim is about rare tokens, which the mean loss hardly shows. A share is there in
# every corpus and for every vocabulary, where a count or a probability would move with both, and it
# says how much of the text a band is.
@dataclass(frozen=True)
class Band:
    """Tokens of the vocabulary that are about equally frequent.

    ``share`` is the share of the training text that this band and all rarer ones are; ``label`` is
    in print.
    """

    name: str
    share: float
    label: str

    @property
    def metric(self) -> str:
        """The name of the band's loss in ``results.csv``."""
        return f"loss_{self.name}"

    @property
    def calibration(self) -> str:
        """The name of the mean over the band's tokens of log(probability / frequency)."""
        return f"calibration_{self.name}"

    @property
    def pooled_calibration(self) -> str:
        """The name of the same ratio of the whole band, as if it were one token."""
        return f"pooled_calibration_{self.name}"


NEVER_SEEN = "never_seen"
"""The tokens of the vocabulary that are not in the training text; only the detail of an evaluation
has their loss."""
BANDS = (
    Band("rarest", 0.01, "rarest 1 %"),
    Band("rare", 0.1, "1 to 10 %"),
    Band("frequent", 0.5, "10 to 50 %"),
    Band("most_frequent", 1.0, "50 to 100 %"),
)
RAREST = BANDS[0]
BAND_NAMES = (NEVER_SEEN, *(band.name for band in BANDS))
"""Names of the bands by their number."""
BAND_SHARES = [band.share for band in BANDS]
"""Shares of the training text that each band and all rarer ones are."""
