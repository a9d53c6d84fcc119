"""What a pass over held-out text says beside its mean loss: by frequency band, by window, per byte,
and its logits.

B: sequences of a batch    T: tokens of a window    N: windows    P: pieces of windows
G: held-out documents
V: tokens of the vocabulary    K: bands, the tokens that were never seen first
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.data.bins import UNIGRAM, Meta, load_meta, open_tokens
from coupled_adam_bench.data.check import META, TOKENIZER, verified_file, verified_tree
from coupled_adam_bench.data.token_bytes import UNKNOWN, TokenBytes, token_bytes
from coupled_adam_bench.evaluation.calibration import (
    LogitSums,
    calibration,
    calibration_curve,
    finite,
    pooled_error,
)
from coupled_adam_bench.records.kept import WINDOWS, WindowLosses, pack_windows
from coupled_adam_bench.records.stored import Evaluation, ResultRow, row
from coupled_adam_bench.study.catalogue.bands import BAND_NAMES, BAND_SHARES, BANDS, RAREST
from coupled_adam_bench.study.catalogue.metrics import HELD_OUT_SIZES, METRICS, of_text
from embedding_geometry.frequency import bands_of_tokens

_SPELL_THE_TEXT = ("word", "gpt2", "bpe")
"""The tokenizers of our own, whose tokens spell any text byte for byte."""


@dataclass(frozen=True)
class Vocabulary:
    """What is known about the tokens of prepared data."""

    unigram_counts: NDArray[np.int64]
    bands: NDArray[np.int64]
    bytes_of_tokens: TokenBytes | None
    no_bytes: str
    """Why the bytes of the tokens are not known, where they are not."""
    n_bytes: int | None = None
    """Bytes of the text that all windows of a split predict, where its tokens do not spell them;
    else None."""


def open_vocabulary(folder: Path, split: str, windows: str) -> Vocabulary:
    """Return what the data in ``folder`` say about their tokens; ``ValueError`` for a damaged file.

    What the tokens of the ``split`` spell is compared with the bytes of its text. Where it differs,
    the text counts if its ``windows`` are all, so that they predict it whole, and the bytes of
    other windows are not known.
    """
    meta = load_meta(folder)
    counts_V = np.zeros(meta.vocab_size, dtype=np.int64)
    unigram_counts = np.load(verified_file(folder, UNIGRAM))
    counts_V[: len(unigram_counts)] = unigram_counts
    verified_tree(folder, TOKENIZER)
    bands_V = bands_of_tokens(counts_V, BAND_SHARES)
    try:
        bytes_of_tokens = token_bytes(folder / TOKENIZER, meta.vocab_size, meta.eot_id)
    except ValueError as error:
        return Vocabulary(counts_V, bands_V, None, str(error))
    n_text = meta.splits[split].n_bytes
    if n_text is None:
        problem = "" if meta.tokenizer in _SPELL_THE_TEXT else _no_text(meta)
        return Vocabulary(counts_V, bands_V, None if problem else bytes_of_tokens, problem)
    tokens = open_tokens(folder, split)
    n_spelled = bytes_of_tokens.spelled(tokens)
    if n_spelled in (None, n_text):  # with unknown tokens the targets say how many there are
        return Vocabulary(counts_V, bands_V, bytes_of_tokens, "")
    if windows == "all":
        n_predicted = n_text - int(bytes_of_tokens.first[tokens[0]])  # the first token is no target
        return Vocabulary(counts_V, bands_V, bytes_of_tokens, "", n_predicted)
    problem = (
        f"the tokens spell {n_spelled:,} bytes of a text of {n_text:,}, so those of single windows"
        " are not known"
    )
    return Vocabulary(counts_V, bands_V, None, problem)


def _no_text(meta: Meta) -> str:
    """Return why the bytes of the text are not known."""
    if meta.source.get("kind") == "bins":
        return "files of tokens do not say which bytes their text has"
    return (
        f"the text was not counted when it was prepared; delete {META} of {meta.data_id} to prepare"
        " it again"
    )


class LossDetail:
    """Takes logits and the losses of single targets while they are computed, and gives the
    evaluation of a model."""

    def __init__(
        self, vocabulary: Vocabulary, starts_N: NDArray[np.int64], ends_G: NDArray[np.int64]
    ) -> None:
        """Take where the windows start, in the order in which they will come, and where documents
        end."""
        self._rarest_V = vocabulary.bands == BAND_NAMES.index(RAREST.name)
        self.logits = LogitSums(self._rarest_V)
        """What takes the logits, chunk by chunk."""
        self._vocabulary = vocabulary
        self._counts_V = np.zeros(len(vocabulary.unigram_counts), dtype=np.int64)
        self._band_sums: list[NDArray[Any]] = []
        self._starts_N, self._ends_G = starts_N, ends_G
        self._n_windows = 0
        self._pieces: list[tuple[NDArray[Any], ...]] = []
        self._n_bytes = self._n_unknown = 0

    def add(
        self, batch: tuple[NDArray[np.int64], NDArray[np.int64]], losses_BT: NDArray[np.float64]
    ) -> None:
        """Add the losses of a batch of inputs and targets, all of shape (B, T)."""
        inputs_BT, targets_BT = batch
        bands = self._vocabulary.bands[targets_BT].ravel()
        self._band_sums.append(np.bincount(bands, losses_BT.ravel(), len(BAND_NAMES)))
        self._counts_V += np.bincount(targets_BT.ravel(), minlength=len(self._counts_V))
        self._add_pieces(losses_BT, self._rarest_V[targets_BT])
        if self._vocabulary.bytes_of_tokens is not None:
            bytes_BT = self._vocabulary.bytes_of_tokens.of(targets_BT, inputs_BT)
            self._n_bytes += int(bytes_BT[bytes_BT != UNKNOWN].sum())
            self._n_unknown += int((bytes_BT == UNKNOWN).sum())

    def _add_pieces(self, losses_BT: NDArray[np.float64], rarest_BT: NDArray[np.bool_]) -> None:
        """Cut the next windows where a document ends, after the target that is its end-of-text
        token.

        A piece has its columns of the file, the probability of the rarest band, and the targets
        that are in it.
        """
        n_sequences, length = losses_BT.shape
        starts_B = self._starts_N[self._n_windows : self._n_windows + n_sequences]
        self._n_windows += n_sequences
        inputs_BT = starts_B[:, None] + np.arange(length)
        documents_BT = np.searchsorted(self._ends_G, inputs_BT + 1)
        begins_BT = np.diff(documents_BT, axis=1, prepend=-1) != 0
        first_P = np.flatnonzero(begins_BT)
        n_targets_P = np.diff(first_P, append=losses_BT.size)
        places = (inputs_BT.ravel()[first_P], documents_BT.ravel()[first_P], n_targets_P)
        values = (
            losses_BT.ravel(),
            self.logits.take_masses(),
            rarest_BT.ravel().astype(np.float64),
        )
        losses_P, *rarest_P = (np.add.reduceat(value, first_P) for value in values)
        self._pieces.append((*places, losses_P / n_targets_P, *rarest_P))

    def evaluation(self, loss: float, n_tokens: int, device: str) -> Evaluation:
        """Return the evaluation, given the mean ``loss`` over ``n_tokens``."""
        problem = self._no_bytes()
        n_bytes = self._n_bytes if self._vocabulary.n_bytes is None else self._vocabulary.n_bytes
        bits = math.nan if problem else loss * n_tokens / math.log(2) / n_bytes
        logits, probability_V = self.logits.statistics()
        described = {band["band"]: band for band in self._describe_bands(probability_V)}
        # The rows keep the order of these values: all losses first, then the calibrations.
        values = {"loss": loss, "bits_per_byte": bits}
        for band in BANDS:
            values[band.metric] = described[band.name]["loss"]
        for band in BANDS:
            values[band.calibration] = described[band.name]["calibration"]
            values[band.pooled_calibration] = described[band.name]["pooled_calibration"]
        undefined = [f"bits_per_byte: {problem}"] if problem else []
        for band in BANDS:
            if not described[band.name]["targets"]:
                reason = f"no target is of the {band.label} of the training text"
                undefined.append(f"{band.metric} and calibration: {reason}")
            elif not math.isfinite(values[band.calibration]):
                undefined.append(
                    f"{band.calibration}: a token of the {band.label} has a mean probability of 0"
                )
        # Windows have a column for each of their fields; the last two columns are for the spread
        # over documents.
        *columns, predicted_P, counts_P = map(np.concatenate, zip(*self._pieces, strict=True))
        windows = WindowLosses(*columns)
        sizes = dict(
            zip(HELD_OUT_SIZES, (n_tokens, len(np.unique(windows.documents))), strict=True)
        )
        error = pooled_error(windows.documents, predicted_P, counts_P)
        if math.isnan(error) and described[RAREST.name]["targets"]:
            undefined.append(
                f"{RAREST.pooled_calibration}_stderr: the {RAREST.label} do not vary over documents"
            )
        if not math.isfinite(loss):
            undefined.append(f"test loss of this model is {loss}")
        bands = []
        for band_values in described.values():
            bands.append({key: finite(value) for key, value in band_values.items()})
        detail = {
            "n_predicted_bytes": None if problem else n_bytes,
            "bands": bands,
            "calibration": calibration_curve(
                probability_V, self._counts_V, self._vocabulary.unigram_counts
            ),
            "device": device,
        }
        values |= logits | sizes
        rows = []
        for name, value in values.items():
            rows.append(row("test", name, value if math.isfinite(value) else math.nan))
        rows.append(
            row(
                "test",
                f"{RAREST.pooled_calibration}_stderr",
                error,
                METRICS[RAREST.pooled_calibration].unit,
            )
        )
        rows += self._of_text()
        return Evaluation(rows, undefined, detail, {WINDOWS: pack_windows(windows)})

    def _of_text(self) -> Iterator[ResultRow]:
        """Yield the calibrations that a model with exactly the training text's frequencies has on
        this text."""
        share_V = self._vocabulary.unigram_counts / self._vocabulary.unigram_counts.sum()
        for band in BANDS:
            chosen_V = self._vocabulary.bands == BAND_NAMES.index(band.name)
            found = calibration(share_V, self._counts_V, chosen_V)
            for name, value in (
                (band.calibration, found.mean_log_ratio),
                (band.pooled_calibration, found.pooled_log_ratio),
            ):
                yield row("test", of_text(name), value, METRICS[name].unit)

    def _describe_bands(self, probability_V: NDArray[np.float64]) -> Iterator[dict[str, Any]]:
        """Yield for each band its tokens, the range of their counts in training, its targets, loss
        and calibration."""
        totals_K = np.sum(self._band_sums, axis=0)
        for number, name in enumerate(BAND_NAMES):
            chosen_V = self._vocabulary.bands == number
            training = self._vocabulary.unigram_counts[chosen_V]
            n_targets = int(self._counts_V[chosen_V].sum())
            found = calibration(probability_V, self._counts_V, chosen_V)
            span = [int(training.min()), int(training.max())] if len(training) else None
            loss = float(totals_K[number]) / n_targets if n_targets else math.nan
            yield {
                "band": name,
                "tokens": len(training),
                "training_counts": span,
                "targets": n_targets,
                "occurring_tokens": found.n_occurring,
                "loss": loss,
                "calibration": found.mean_log_ratio,
                "pooled_calibration": found.pooled_log_ratio,
            }

    def _no_bytes(self) -> str:
        """Return why the bytes of the predicted text are not known; empty if they are."""
        if self._n_unknown:
            return f"{self._n_unknown} targets are tokens that stand for unknown text"
        if self._vocabulary.bytes_of_tokens is not None and not self._n_bytes:
            return "the targets stand for no text"
        return self._vocabulary.no_bytes
