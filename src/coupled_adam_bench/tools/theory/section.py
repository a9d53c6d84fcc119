"""The section "Theory" of the report: the paper's statements beside measurements, and its open
question answered."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from markupsafe import Markup

from coupled_adam_bench.page import formats
from coupled_adam_bench.page.blocks import (
    Block,
    Cell,
    Column,
    Figures,
    Fold,
    Grid,
    Heading,
    Items,
    Text,
)
from coupled_adam_bench.report.figures import figures_in
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.study.catalog.names import ADAM, COUPLED_ADAM, EMBEDDING, HEAD, SGD
from coupled_adam_bench.tools.theory.records import LARGEST, ZERO_FLOAT64, TheoryGroup, read_theory

# Relative norms of a sum, |sum| / sum of norms. Rounding alone leaves about 1e-7 in float32.
ZERO_FLOAT32 = 1e-5
NOT_ZERO = 1e-3
R_SQUARED = 0.85
"""The lower one of the two values reported of Fig. 4, 0.91 and 0.85 [P]."""


@dataclass(frozen=True)
class Statement:
    """A statement of the paper about a number at ``path`` of each run, and the threshold that
    decides it."""

    claim: str
    threshold: str
    path: tuple[str, ...]
    holds: Callable[[float], bool]
    what: str
    """The name of the number."""
    about: str = ""
    """The runs that it is about, as a group's sentence says it."""
    of: Callable[[TheoryGroup], bool] = lambda group: True  # noqa: ARG005
    untied: bool = False
    """Whether it is about untied heads."""


def _is_adam(group: TheoryGroup) -> bool:
    return group.cell.optimizer.key == ADAM


def _is_balanced(group: TheoryGroup) -> bool:
    """Tell whether updates of a head can sum to zero.

    Weight decay is part of an update, and moves the mean by itself. A z-loss, a mu-loss and a soft
    cap have gradients that do not sum to zero, and mu-centering makes any updates do so.
    """
    cell, optimizer = group.cell, group.cell.optimizer.head
    plain = optimizer.name in (COUPLED_ADAM, SGD) and optimizer.has_plain_head
    return plain and not cell.training.embedding_decay(optimizer)


STATEMENTS = (
    Statement(
        "The gradients of the output side sum to zero over the vocabulary: softmax probabilities"
        " sum to one.",
        f"norm of the sum below {formats.significant(ZERO_FLOAT64)} of the sum of norms, in"
        " float64",
        ("gradient_sum", "output", "float64"),
        lambda value: value < ZERO_FLOAT64,
        "Relative sum in float64",
        of=lambda group: group.cell.optimizer.head.soft_cap is None,
    ),
    Statement(
        "The gradients of the input side, which tying adds, do not.",
        f"norm of the sum above {NOT_ZERO:g} of the sum of norms",
        ("gradient_sum", "input", "float64"),
        lambda value: value > NOT_ZERO,
        "Relative sum in float64",
    ),
    Statement(
        "Where there is no input side, the updates of Coupled Adam and SGD sum to zero as their"
        " gradients do.",
        "untied head, in each recorded step after the warmup below "
        f"{formats.significant(ZERO_FLOAT32)} of the sum of norms, in float32",
        ("drift", HEAD, LARGEST),
        lambda value: value < ZERO_FLOAT32,
        "Largest relative sum",
        " of Coupled Adam or SGD without weight decay",
        _is_balanced,
        untied=True,
    ),
    Statement(
        "The updates of Adam do not, with the same gradients: each row has its own denominator.",
        f"untied head, in some of these steps above {NOT_ZERO:g} of the sum of norms",
        ("drift", HEAD, LARGEST),
        lambda value: value > NOT_ZERO,
        "Largest relative sum",
        " of Adam",
        _is_adam,
        untied=True,
    ),
    Statement(
        "The mean squared gradient of a row is proportional to its token's unigram probability"
        " (Fig. 4).",
        f"linear fit in runs of Adam with R² of at least {R_SQUARED:g}; the paper's is reported as"
        " 0.91 or 0.85",
        ("second_moment", "r_squared"),
        lambda value: value >= R_SQUARED,
        "R²",
        " of Adam",
        _is_adam,
    ),
)


@dataclass(frozen=True)
class Check:
    """A statement and its number in the runs that can tell."""

    statement: Statement
    groups: Sequence[TheoryGroup]

    @property
    def values(self) -> list[float]:
        """The number in each run that the statement is about."""
        groups = [group for group in self.groups if not (self.statement.untied and group.tied)]
        return _all([group for group in groups if self.statement.of(group)], *self.statement.path)

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        held = [self.statement.holds(value) for value in self.values]
        if not held:
            return "Not measured"
        if len(set(held)) == 1:
            return "Holds here" if held[0] else "Does not hold here"
        return f"Holds in {sum(held)} of {len(held)} runs"

    @property
    def tone(self) -> str:
        """The CSS class of the verdict."""
        return {"Holds here": "good", "Does not hold here": "bad"}.get(self.verdict, "middle")

    @property
    def finding(self) -> str:
        """What was found, or that there was nothing to find it in."""
        if values := self.values:
            found = _range(values, _two_digits)
            return f"{self.statement.what} {found}, {formats.plural(len(values), 'run')}."
        if self.statement.untied and all(group.tied for group in self.groups):
            return "The study has no run with an untied head."
        return f"No run{self.statement.about} was measured."


def _all(groups: Sequence[TheoryGroup], *path: str | int) -> list[float]:
    return [value for group in groups for value in group.values(*path)]


def _range(values: Sequence[float], text: Callable[[float], str]) -> str:
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"


def _percent(share: float) -> str:
    return f"{formats.fixed(100 * share, 1)} %"


def _ratio(value: float) -> str:
    return f"{float(f'{value:.2g}'):,.0f}" if value >= 10 else formats.significant(value, 2)


def answer_open_question(groups: Sequence[TheoryGroup]) -> str:
    """Answer the paper's open question in numbers: how much of the residual drift is the input
    side's."""
    sentences = []
    for key, label in ((COUPLED_ADAM, "Coupled Adam"), (ADAM, "Adam")):
        own = [group for group in groups if group.tied and group.cell.optimizer.key == key]
        shares = _all(own, "drift", EMBEDDING, "input_share")
        if not shares:
            sentences.append(
                f"With tied weights and {label}, the share of the input side was not measured."
            )
            continue
        spread = (
            f"{_range(shares, _percent)} over {len(shares)} runs" if len(shares) > 1 else "one run"
        )
        text = (
            f"With tied weights and {label}, {_percent(fmean(shares))} of the mean embedding's"
            f" displacement comes from the input side ({spread})"
        )
        twins = [
            (group, other) for group in own for other in groups if _is_untied_twin(group, other)
        ]
        ends = [
            (
                group.values("drift", EMBEDDING, "displacement", -1),
                other.values("drift", HEAD, "displacement", -1),
            )
            for group, other in twins
        ]
        pairs = [(fmean(moved), fmean(beside)) for moved, beside in ends if moved and beside]
        if pairs and all(moved > 0 and beside > 0 for moved, beside in pairs):
            ratios = [moved / beside for moved, beside in pairs]
            text += (
                f"; the displacement is {_range(ratios, _ratio)} times that of the mean of an"
                " untied head"
            )
            if not _all([other for _, other in twins], "drift", HEAD, "output_share"):
                text += ", which moves by no more than rounding"
        sentences.append(f"{text}.")
    return " ".join(sentences)


def _is_untied_twin(group: TheoryGroup, other: TheoryGroup) -> bool:
    """Tell whether two groups differ in the tying alone."""
    same = [(each.size, each.cell.optimizer.key) for each in (group, other)]
    return same[0] == same[1] and group.tied and not other.tied


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan


def _largest(values: Sequence[float]) -> float:
    """Return the largest value: a table shows the worst run of what should be small."""
    return max(values, default=math.nan)


def _two_digits(value: float) -> str:
    return formats.significant(value, 2)


def _three_decimals(value: float) -> str:
    return formats.fixed(value, 3)


def _in_percent(value: float) -> str:
    return formats.fixed(100 * value, 1)


@dataclass(frozen=True)
class Moved:
    """A matrix of a group, whose mean row moved."""

    group: TheoryGroup
    matrix: str

    def values(self, *path: str | int) -> list[float]:
        """Return the numbers at a path in the drift of the matrix."""
        return self.group.values("drift", self.matrix, *path)


def _number(
    heading: str,
    *path: str | int,
    of: Callable[[Sequence[float]], float] = _mean,
    text: Callable[[float], str] = formats.significant,
    over: str = "",
) -> Column[Any]:
    """Return the column of a number over the seeds of a row, ``-`` where there is none."""
    return Column(Markup(heading), lambda row: text(of(row.values(*path))), "number", over)


def _runs(group: TheoryGroup) -> str:
    measured = sum(record.find("status") == "ok" for record in group.records)
    return (
        str(measured) if measured == len(group.records) else f"{measured} of {len(group.records)}"
    )


_CHECKS: tuple[Column[Check], ...] = (
    Column("The paper", lambda check: Cell(check.statement.claim, "wrap"), "row"),
    Column("Verdict", lambda check: Cell(check.verdict, f"status {check.tone}")),
    Column("Found", lambda check: check.finding, "wrap"),
    Column("Threshold", lambda check: check.statement.threshold, "wrap"),
)
GRADIENTS: tuple[Column[TheoryGroup], ...] = (
    Column(Markup("<i>D</i>"), lambda group: group.tokens_label),
    Column(Markup("<i>N</i>"), lambda group: group.model_label),
    Column("Head", lambda group: "tied" if group.tied else "untied"),
    Column("Optimizer", lambda group: group.cell.optimizer.label, "row"),
    Column("runs", _runs, "number"),
    *(
        _number(
            precision,
            "gradient_sum",
            side,
            precision,
            of=_largest,
            text=_two_digits,
            over=f"{side} side",
        )
        for side in ("output", "input")
        for precision in ("float32", "float64")
    ),
    _number("slope <i>A</i>", "second_moment", "slope"),
    _number("<i>R</i>²", "second_moment", "r_squared", text=_three_decimals),
    _number("<i>R</i>², Adam\u2019s own", "second_moment_adam", "r_squared", text=_three_decimals),
)
DRIFT: tuple[Column[Moved], ...] = (
    Column(Markup("<i>D</i>"), lambda moved: moved.group.tokens_label),
    Column(Markup("<i>N</i>"), lambda moved: moved.group.model_label),
    Column("Matrix", lambda moved: "tied" if moved.group.tied else moved.matrix),
    Column("Optimizer", lambda moved: moved.group.cell.optimizer.label, "row"),
    Column("runs", lambda moved: _runs(moved.group), "number"),
    _number("displacement", "displacement", -1),
    _number("‖<i>μ</i>‖<sup>r</sup>", "mean_norm_ratio", -1),
    _number("sum of updates", LARGEST, of=_largest, text=_two_digits),
    *(
        _number(part, f"{part}_share", text=_in_percent, over="share of the displacement, %")
        for part in ("input", "output", "decay")
    ),
    _number("rounding", "residual", -1),
)


def theory(material: Material) -> Iterator[Block]:
    """Yield the blocks of the section, none for a study that does not check the theory."""
    groups = read_theory(material.study.layout, material.runs)
    if not groups:
        return
    yield Text(
        "This section compares what the paper derives with what was measured in this study's runs."
        " A statement holds here if every run in which it could be measured meets its threshold."
        " The thresholds are ours, and these runs prove nothing about others."
    )
    yield Grid(
        "Statements of the paper", _CHECKS, [Check(statement, groups) for statement in STATEMENTS]
    )
    yield Heading("Where the residual drift comes from")
    yield Text(
        "The paper leaves open how much of the drift that remains with Coupled Adam is due to"
        f" weight tying. {answer_open_question(groups)} A share is the part's projection on the"
        " whole displacement, so shares of one matrix add up to 100 %, and one that works against"
        " the displacement is negative."
    )
    yield Figures(figures_in("theory"))
    yield Heading("Numbers")
    caption = (
        "Gradients of the trained model: norm of their sum over the sum of their norms (of several"
        " seeds the largest), and the line of the mean squared gradient against unigram probability"
        " (of several seeds the mean)"
    )
    gradients = Grid("Gradients and second moments", GRADIENTS, groups, caption)
    yield Fold(f"Gradients and second moments: {formats.plural(len(groups), 'row')}", [gradients])
    moved = [
        Moved(group, matrix)
        for group in groups
        for matrix in (EMBEDDING, HEAD)[: 1 if group.tied else 2]
    ]
    caption = (
        "Drift of the mean row from the first step to the last: its norm, the largest sum of"
        " updates in a step after the warmup over the sum of their norms (of several seeds the"
        " largest), and the shares by origin (of several seeds the means)"
    )
    drift = Grid("Drift of the mean embedding", DRIFT, moved, caption)
    yield Fold(f"Drift: {formats.plural(len(moved), 'row')}", [drift])
    difference = _two_digits(_largest(_all(groups, "replay_max_relative_loss_difference")))
    yield Text(
        "The drift is measured in a replay of the training, whose losses differ from the"
        f" training's own by at most {difference} (relative).",
        small=True,
    )
    remarks: dict[str, list[str]] = {}
    for record in (record for group in groups for record in group.records):
        if reason := record.find("reason"):
            remarks.setdefault(reason, []).append(record.cell.id)
    if remarks:
        yield Text("Missing:")
        yield Items([_remark(reason, cells) for reason, cells in remarks.items()])


def _remark(reason: str, cells: Sequence[str]) -> Markup:
    names = Markup(", ").join(Markup("<code>{}</code>").format(cell) for cell in cells)
    return Markup("{} ({}): {}").format(reason, formats.plural(len(cells), "run"), names)
