"""The section "Stated in advance" of the report: what becomes of the hypotheses, and whether the plan was kept."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coupled_adam_bench.report.formats import MISSING, p_value, significant
from coupled_adam_bench.results.groups import Group, Layout
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.power import PAIRED, POWER, UNPAIRED, hours_per_seed, power_of, seeds_needed
from coupled_adam_bench.statistics.stated import (
    CONFIRMED,
    NOT_CONFIRMED,
    OPEN,
    Check,
    checks,
    meant_groups,
    read_stated_csv,
)
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.stated import Hypothesis, Stated, StatedPlan, read_record
from coupled_adam_bench.tools.estimate.study import Estimate
from coupled_adam_bench.tools.estimate.text import align, count

TONES = {CONFIRMED: "good", NOT_CONFIRMED: "bad", OPEN: "middle"}
CORRECTIONS = {"none": "without correction", "holm": "after Holm's correction", "bonferroni": "shared by Bonferroni"}
Row = Mapping[Hashable, Any]


@dataclass(frozen=True)
class HypothesisRow:
    """A hypothesis and its outcome, as text; ``places`` are (place, difference, p)."""

    name: str
    metric: Metric
    better: str
    than: str
    where: str
    test: str
    seeds: str
    p_value: str
    level: str
    outcome: str
    tone: str
    places: tuple[tuple[str, str, str], ...]
    reason: str


@dataclass(frozen=True)
class StatedSection:
    """What the template prints; ``meant`` are (place, metric, both optimizers)."""

    stated: Stated
    title: str
    alpha: str
    correction: str
    hypotheses: tuple[HypothesisRow, ...]
    checks: tuple[Check, ...]
    meant: frozenset[tuple[Any, ...]]

    @property
    def in_advance(self) -> bool:
        """Whether the record says that the plan was there before the first of its runs had begun."""
        return self.checks[0].kept == "yes"

    def is_stated(self, group: Group, metric: Metric, optimizer: str, reference: str) -> bool:
        """Tell whether a comparison was stated in advance; all others are exploratory."""
        return self.in_advance and (group.place, metric.name, frozenset((optimizer, reference))) in self.meant


def _hypothesis(study: StudyResults, hypothesis: Hypothesis, rows: Sequence[Row]) -> HypothesisRow:
    places = {group.place: group for group in meant_groups(study.layout, hypothesis)}
    labels = next(iter(places.values())).optimizer_labels
    where = [study.tables[hypothesis.table].title, *filter(None, (hypothesis.tokens, hypothesis.model))]
    named = {(group.setup.n_params, group.n_tokens, group.setup): group for group in places.values()}
    shown = []
    for (n_params, n_tokens, _), group in named.items():
        row = next(
            r for r in rows if (r["n_params"], r["n_tokens"], r["model"]) == (n_params, n_tokens, group.setup.model)
        )
        shown.append(
            (
                f"D = {group.tokens_label}, N = {group.model_label}",
                significant(row["difference"]),
                p_value(row["p_value"]),
            )
        )
    return HypothesisRow(
        name=hypothesis.name,
        metric=study.layout.metrics[hypothesis.metric],
        better=labels[hypothesis.better],
        than=labels[hypothesis.than],
        where=", ".join(where) + (f": all of {len(places)} places" if len(places) > 1 else ""),
        test={"t-test": "unpaired", "paired": "paired", "trend": "trend"}[hypothesis.test],
        seeds=str(rows[0]["seeds"]),
        p_value=p_value(rows[0]["p_hypothesis"]),
        level=significant(rows[0]["level"]),
        outcome=rows[0]["outcome"],
        tone=TONES[rows[0]["outcome"]],
        places=tuple(shown),
        reason="; ".join(dict.fromkeys(row["reason"] for row in rows if row["reason"])),
    )


def stated_section(study: StudyResults, folder: Path) -> StatedSection | None:
    """Return the section from ``stated.csv`` and the record in ``folder``, None of a study without a stated plan."""
    stated = study.plan.stated
    if stated is None:
        return None
    plan, all_rows = stated.plan, read_stated_csv(folder / "stated.csv").to_dict("records")
    of_each = {each.name: [row for row in all_rows if row["hypothesis"] == each.name] for each in plan.hypotheses}
    rows = tuple(_hypothesis(study, each, of_each[each.name]) for each in plan.hypotheses)
    meant = {
        (group.place, each.metric, frozenset((each.better, each.than)))
        for each in plan.hypotheses
        for group in meant_groups(study.layout, each)
    }
    return StatedSection(
        stated=stated,
        title=plan.title,
        alpha=f"{100 * plan.alpha:g} %",
        correction=CORRECTIONS[plan.correction] if len(plan.hypotheses) > 1 else "",
        hypotheses=rows,
        checks=checks(study, read_record(folder)),
        meant=frozenset(meant),
    )


def _planned(plan: StatedPlan, each: Hypothesis) -> tuple[str, str, str]:
    """Return as text what is expected, the power of all stated seeds, and the seeds needed."""
    if each.difference is None or each.spread is None:
        return MISSING, MISSING, MISSING
    design = PAIRED if each.test == "paired" else UNPAIRED
    effect = each.difference / each.spread
    # Under Holm the first of the hypotheses has Bonferroni's level.
    alpha = plan.alpha / (1 if plan.correction == "none" else len(plan.hypotheses))
    needed = seeds_needed(effect, design, alpha=alpha)
    power = power_of(effect, len(plan.seeds), design, alpha)
    expected = f"{significant(each.difference)} ± {significant(each.spread)}"
    return expected, f"{100 * power:.0f} %", MISSING if math.isnan(needed) else f"{needed:.0f}"


def describe_stated(layout: Layout, estimate: Estimate) -> str:
    """Return what ``plan`` says of a stated plan: the power of its seeds if it expects rightly, and their cost."""
    assert layout.plan.stated is not None
    stated = layout.plan.stated
    unit = "GPU" if estimate.on_gpus else "CPU"
    header = ["hypothesis", "metric", "expected", "seeds", "power", f"for {100 * POWER:g} %", f"{unit} h"]
    table = [header]
    for each in stated.plan.hypotheses:
        groups = meant_groups(layout, each)
        hours = sum(hours_per_seed(estimate, group, (each.better, each.than)) for group in groups)
        expected, power, needed = _planned(stated.plan, each)
        n_seeds = len(stated.plan.seeds)
        table.append([each.name, each.metric, expected, str(n_seeds), power, needed, count(hours * n_seeds)])
    title = f"Stated in {stated.path} (SHA-256 {stated.sha256[:12]}); the power is that at one place"
    return "\n".join(["", title, *align(table, n_left=3), ""])
