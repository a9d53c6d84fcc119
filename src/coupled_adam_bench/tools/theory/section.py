"""The section "Theory" of the report: the paper's statements beside measurements, and its open question answered."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

from coupled_adam_bench.report import formats
from coupled_adam_bench.report.blocks import Block, Cell, Column, Figures, Fold, Grid, Heading, Items, Text
from coupled_adam_bench.report.figures import figures_in
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.study.catalog.names import ADAM, COUPLED_ADAM, EMBEDDING, HEAD, SGD
from coupled_adam_bench.tools.theory.records import (
    Choose,
    DriftRecord,
    TheoryGroup,
    adam_r_squared,
    drift_value,
    gradient_sum,
    largest_update_sum,
    r_squared,
    read_theory,
    slope,
)
from coupled_adam_bench.tools.theory.toy import ZERO_FLOAT64

# Relative norms of a sum, |sum| / sum of norms. Rounding alone leaves about 1e-7 in float32.
ZERO_FLOAT32 = 1e-5
NOT_ZERO = 1e-3
R_SQUARED = 0.85
"""The lower one of the two values reported of Fig. 4, 0.91 and 0.85 [P]."""


@dataclass(frozen=True)
class Check:
    """A statement of the paper, the threshold that decides it, and what was found in how many runs."""

    claim: str
    threshold: str
    finding: str
    holds: int
    total: int

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        if not self.total:
            return "Not measured"
        if self.holds in (0, self.total):
            return "Holds here" if self.holds else "Does not hold here"
        return f"Holds in {self.holds} of {self.total} runs"

    @property
    def tone(self) -> str:
        """The CSS class of the verdict."""
        return "middle" if 0 < self.holds < self.total or not self.total else "good" if self.holds else "bad"


def _percent(share: float) -> str:
    return f"{formats.fixed(100 * share, 1)} %"


def _range(values: Sequence[float], text: Callable[[float], str]) -> str:
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"


def _all(groups: Sequence[TheoryGroup], choose: Choose) -> list[float]:
    return [value for group in groups for value in group.values(choose)]


def _check(
    claim: str, threshold: str, values: Sequence[float], holds: Callable[[float], bool], what: str, missing: str
) -> Check:
    finding = f"{what} {_range(values, lambda value: formats.significant(value, 2))}" if values else missing
    number = f", {formats.plural(len(values), 'run')}" if values else ""
    return Check(claim, threshold, f"{finding}{number}.", sum(map(holds, values)), len(values))


def checks_of(groups: Sequence[TheoryGroup]) -> tuple[Check, ...]:
    """Set each statement of the paper against the runs that can tell; all thresholds are those of this module."""
    untied = [group for group in groups if not group.tied]
    adam = [group for group in groups if group.cell.optimizer.key == ADAM]
    # Weight decay is part of an update, and moves the mean by itself. A z-loss, a mu-loss and a soft cap have gradients
    # that do not sum to zero, and mu-centering makes any updates do so.
    balanced = [
        group
        for group in untied
        if group.cell.optimizer.name in (COUPLED_ADAM, SGD)
        and group.cell.optimizer.has_plain_head
        and not group.cell.training.embedding_decay(group.cell.optimizer)
    ]
    uncapped = [group for group in groups if group.cell.optimizer.soft_cap is None]
    no_head = "The study has no run with an untied head"
    return (
        _check(
            "The gradients of the output side sum to zero over the vocabulary: softmax probabilities sum to one.",
            f"norm of the sum below {formats.significant(ZERO_FLOAT64)} of the sum of norms, in float64",
            _all(uncapped, gradient_sum("output", "float64")),
            lambda value: value < ZERO_FLOAT64,
            "Relative sum in float64",
            "No run was measured",
        ),
        _check(
            "The gradients of the input side, which tying adds, do not.",
            f"norm of the sum above {NOT_ZERO:g} of the sum of norms",
            _all(groups, gradient_sum("input", "float64")),
            lambda value: value > NOT_ZERO,
            "Relative sum in float64",
            "No run was measured",
        ),
        _check(
            "Where there is no input side, the updates of Coupled Adam and SGD sum to zero as their gradients do.",
            "untied head, in each recorded step after the warmup below "
            f"{formats.significant(ZERO_FLOAT32)} of the sum of norms, in float32",
            _all(balanced, largest_update_sum(HEAD)),
            lambda value: value < ZERO_FLOAT32,
            "Largest relative sum",
            no_head if not untied else "No run of Coupled Adam or SGD without weight decay was measured",
        ),
        _check(
            "The updates of Adam do not, with the same gradients: each row has its own denominator.",
            f"untied head, in some of these steps above {NOT_ZERO:g} of the sum of norms",
            _all([group for group in adam if not group.tied], largest_update_sum(HEAD)),
            lambda value: value > NOT_ZERO,
            "Largest relative sum",
            no_head if not untied else "No run of Adam was measured",
        ),
        _check(
            "The mean squared gradient of a row is proportional to its token's unigram probability (Fig. 4).",
            f"linear fit in runs of Adam with R² of at least {R_SQUARED:g}; the paper's is reported as 0.91 or 0.85",
            _all(adam, r_squared),
            lambda value: value >= R_SQUARED,
            "R²",
            "No run of Adam was measured",
        ),
    )


def _ratio(value: float) -> str:
    return f"{float(f'{value:.2g}'):,.0f}" if value >= 10 else formats.significant(value, 2)


def answer_open_question(groups: Sequence[TheoryGroup]) -> str:
    """Answer the paper's open question in numbers: how much of the residual drift is the input side's."""
    tied = [group for group in groups if group.tied]
    sentences = []
    for key, label in ((COUPLED_ADAM, "Coupled Adam"), (ADAM, "Adam")):
        own = [group for group in tied if group.cell.optimizer.key == key]
        shares = _all(own, drift_value(EMBEDDING, lambda drift: drift.input_share))
        if not shares:
            sentences.append(f"With tied weights and {label}, the share of the input side was not measured.")
            continue
        spread = f"{_range(shares, _percent)} over {len(shares)} runs" if len(shares) > 1 else "one run"
        text = (
            f"With tied weights and {label}, {_percent(fmean(shares))} of the mean embedding's displacement comes from "
            f"the input side ({spread})"
        )
        partners = [(group, other) for group in own for other in groups if _is_untied_twin(group, other)]
        pairs = [
            (fmean(moved), fmean(beside))
            for group, other in partners
            if (moved := group.values(drift_value(EMBEDDING, lambda drift: drift.displacement[-1])))
            and (beside := other.values(drift_value(HEAD, lambda drift: drift.displacement[-1])))
        ]
        if pairs and all(moved > 0 and beside > 0 for moved, beside in pairs):
            ratios = [moved / beside for moved, beside in pairs]
            text += f"; the displacement is {_range(ratios, _ratio)} times that of the mean of an untied head"
            if not _all([other for _, other in partners], drift_value(HEAD, lambda drift: drift.output_share)):
                text += ", which moves by no more than rounding"
        sentences.append(f"{text}.")
    return " ".join(sentences)


def _is_untied_twin(group: TheoryGroup, other: TheoryGroup) -> bool:
    """Tell whether two groups differ in the tying alone."""
    same = [(each.shape, each.cell.n_tokens, each.cell.optimizer.key) for each in (group, other)]
    return same[0] == same[1] and group.tied and not other.tied


def _largest(values: Sequence[float]) -> str:
    """Return the largest value, or ``-`` if there is none: a table shows the worst run of what should be small."""
    return formats.significant(max(values, default=math.nan), 2)


def _mean(values: Sequence[float], text: Callable[[float], str] = formats.significant) -> str:
    return text(fmean(values)) if values else formats.MISSING


def _runs(group: TheoryGroup) -> str:
    measured = sum(record.status == "ok" for record in group.records)
    return str(measured) if measured == len(group.records) else f"{measured} of {len(group.records)}"


_CHECKS: tuple[Column[Check], ...] = (
    Column("The paper", lambda check: Cell(check.claim, "wrap"), "row"),
    Column("Verdict", lambda check: Cell(check.verdict, f"status {check.tone}")),
    Column("Found", lambda check: check.finding, "wrap"),
    Column("Threshold", lambda check: check.threshold, "wrap"),
)


def _sum(side: str, precision: str) -> Column[TheoryGroup]:
    choose = gradient_sum(side, precision)
    return Column(precision, lambda group: _largest(group.values(choose)), "number", f"{side} side")


def _fit(heading: str, choose: Choose, text: Callable[[float], str]) -> Column[TheoryGroup]:
    return Column(Markup(heading), lambda group: _mean(group.values(choose), text), "number")


def _three_digits(value: float) -> str:
    return formats.fixed(value, 3)


GRADIENTS: tuple[Column[TheoryGroup], ...] = (
    Column(Markup("<i>D</i>"), lambda group: group.tokens_label),
    Column(Markup("<i>N</i>"), lambda group: group.model_label),
    Column("Head", lambda group: "tied" if group.tied else "untied"),
    Column("Optimizer", lambda group: group.cell.optimizer.label, "row"),
    Column("runs", _runs, "number"),
    *(_sum(side, precision) for side in ("output", "input") for precision in ("float32", "float64")),
    _fit("slope <i>A</i>", slope, formats.significant),
    _fit("<i>R</i>²", r_squared, _three_digits),
    _fit(
        "<i>R</i>², Adam\u2019s own",
        adam_r_squared,
        _three_digits,
    ),
)


@dataclass(frozen=True)
class Moved:
    """A matrix of a group, whose mean row moved."""

    group: TheoryGroup
    matrix: str

    def mean(self, choose: Callable[[DriftRecord], float | None]) -> str:
        """Return the mean over seeds of a number of the drift."""
        return _mean(self.group.values(drift_value(self.matrix, choose)))

    def share(self, part: str) -> str:
        """Return the mean share of a part in the displacement, in percent."""
        shares = self.group.values(drift_value(self.matrix, lambda drift: getattr(drift, f"{part}_share")))
        return _mean(shares, lambda share: formats.fixed(100 * share, 1))


def _share(part: str) -> Column[Moved]:
    return Column(part, lambda moved: moved.share(part), "number", "share of the displacement, %")


def _residual(drift: DriftRecord) -> float | None:
    return drift.residual[-1] if drift.residual else None


DRIFT: tuple[Column[Moved], ...] = (
    Column(Markup("<i>D</i>"), lambda moved: moved.group.tokens_label),
    Column(Markup("<i>N</i>"), lambda moved: moved.group.model_label),
    Column("Matrix", lambda moved: "tied" if moved.group.tied else moved.matrix),
    Column("Optimizer", lambda moved: moved.group.cell.optimizer.label, "row"),
    Column("runs", lambda moved: _runs(moved.group), "number"),
    Column("displacement", lambda moved: moved.mean(lambda drift: drift.displacement[-1]), "number"),
    Column(
        Markup("‖<i>μ</i>‖<sup>r</sup>"), lambda moved: moved.mean(lambda drift: drift.mean_norm_ratio[-1]), "number"
    ),
    Column("sum of updates", lambda moved: _largest(moved.group.values(largest_update_sum(moved.matrix))), "number"),
    *(_share(part) for part in ("input", "output", "decay")),
    Column("rounding", lambda moved: moved.mean(_residual), "number"),
)


def theory(material: Material) -> Iterator[Block]:
    """Yield the blocks of the section, none for a study that does not check the theory."""
    groups = read_theory(material.study.layout, material.runs)
    if not groups:
        return
    yield Text(
        "This section compares what the paper derives with what was measured in this study's runs. A statement holds "
        "here if every run in which it could be measured meets its threshold. The thresholds are ours, and these runs "
        "prove nothing about others."
    )
    yield Grid("Statements of the paper", _CHECKS, checks_of(groups))
    yield Heading("Where the residual drift comes from")
    yield Text(
        "The paper leaves open how much of the drift that remains with Coupled Adam is due to weight tying. "
        f"{answer_open_question(groups)} A share is the part's projection on the whole displacement, so shares of one "
        "matrix add up to 100 %, and one that works against the displacement is negative."
    )
    yield Figures(figures_in("theory"))
    yield Heading("Numbers")
    caption = (
        "Gradients of the trained model: norm of their sum over the sum of their norms (of several seeds the largest), "
        "and the line of the mean squared gradient against unigram probability (of several seeds the mean)"
    )
    gradients = Grid("Gradients and second moments", GRADIENTS, groups, caption)
    yield Fold(f"Gradients and second moments: {formats.plural(len(groups), 'row')}", [gradients])
    moved = [Moved(group, matrix) for group in groups for matrix in (EMBEDDING, HEAD)[: 1 if group.tied else 2]]
    caption = (
        "Drift of the mean row from the first step to the last: its norm, the largest sum of updates in a step after "
        "the warmup over the sum of their norms (of several seeds the largest), and the shares by origin (of several "
        "seeds the means)"
    )
    yield Fold(
        f"Drift: {formats.plural(len(moved), 'row')}", [Grid("Drift of the mean embedding", DRIFT, moved, caption)]
    )
    records = [record for group in groups for record in group.records]
    replays = [record.replay_difference for record in records if record.replay_difference is not None]
    yield Text(
        "The drift is measured in a replay of the training, whose losses differ from the training's own by at most "
        f"{_largest(replays)} (relative).",
        small=True,
    )
    remarks: dict[str, list[str]] = {}
    for record in records:
        if record.reason:
            remarks.setdefault(record.reason, []).append(record.cell.id)
    if remarks:
        yield Text("Missing:")
        yield Items([_remark(reason, cells) for reason, cells in remarks.items()])


def _remark(reason: str, cells: Sequence[str]) -> Markup:
    names = Markup(", ").join(Markup("<code>{}</code>").format(cell) for cell in cells)
    return Markup("{} ({}): {}").format(reason, formats.plural(len(cells), "run"), names)
