"""A stated plan before and after its runs: what it is about, what ``plan`` says of it, and whether
it was kept."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from coupled_adam_bench.page.formats import MISSING, significant
from coupled_adam_bench.results.groups import Group, Layout
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.power import PAIRED, POWER, UNPAIRED, power_of, seeds_needed
from coupled_adam_bench.study.plan.preregistration import Hypothesis, StatedPlan, is_meant
from coupled_adam_bench.study.plan.preregistration_record import read_record

Record = Sequence[Mapping[str, Any]]
"""What the workflow has seen of a stated plan, as ``stated.read_record`` returns it."""


def meant_groups(layout: Layout, hypothesis: Hypothesis) -> list[Group]:
    """Return the places that a hypothesis is about."""
    keys = {hypothesis.better, hypothesis.than}
    return [
        group
        for group in layout.groups[hypothesis.table]
        if keys <= group.cells.keys()
        and is_meant(hypothesis, group.table, group.cells[hypothesis.better][0])
    ]


@dataclass(frozen=True)
class Check:
    """What a plan asks for, whether it was kept (``open``: not known, or not yet), and what was
    found."""

    subject: str
    kept: Literal["yes", "no", "open"]
    finding: str


def seeds_with_values(study: StudyResults) -> tuple[list[int], list[int]]:
    """Return the seeds that have a value of any stated comparison, and those of them that have all
    values."""
    assert study.plan.stated is not None
    found: dict[int, list[bool]] = {}
    n_values = 0
    for hypothesis in study.plan.stated.plan.hypotheses:
        for group in meant_groups(study.layout, hypothesis):
            for key in (hypothesis.better, hypothesis.than):
                n_values += 1
                for seed, value in study.at(group, hypothesis.metric)[key].by_seed.items():
                    found.setdefault(seed, []).append(math.isfinite(value))
    some = [seed for seed, there in found.items() if any(there)]
    return some, [seed for seed in some if sum(found[seed]) == n_values]


def _alike(record: Record, sha256: str) -> list[Mapping[str, Any]]:
    """Return the entries with this text and the settings of the last of them, whatever their seeds.

    An entry of an earlier version does not say what was measured: it counts where nothing else was
    seen to be.
    """
    seen = [entry for entry in record if entry["sha256"] == sha256]
    known = [seen[-1].get("measured")] if seen else []
    if not any(_is_changed(entry.get("measured"), *known) for entry in seen):
        known.append(None)
    return [
        entry
        for entry in seen
        if _trained(entry) == _trained(seen[-1]) and entry.get("measured") in known
    ]


def _trained(entry: Mapping[str, Any]) -> set[str]:
    return set(entry["cells"].values())


def _is_changed(measured: Any, other: Any) -> bool:
    return None not in (measured, other) and measured != other


def stated_in_advance(record: Record, sha256: str) -> Check:
    """Return whether a text was stated before the first of its runs had begun, by what was seen of
    it."""
    subject = "stated in advance"
    alike = _alike(record, sha256)
    if not alike:
        return Check(
            subject,
            "open",
            "it is not recorded when this text was first seen; the workflow records it",
        )
    first = alike[0]
    finding = (
        f"this text with these settings was first seen on {first['at']}, when {len(first['begun'])}"
        f" of {first['n_cells']} runs had begun"
    )
    # Other settings and texts are not judged here, but a reader has to know that they were tried.
    of_text = [entry for entry in record if entry["sha256"] == sha256]
    is_measured_otherwise = any(
        _is_changed(a.get("measured"), b.get("measured")) for a, b in pairwise(of_text)
    )
    if is_measured_otherwise or any(_trained(entry) != _trained(of_text[0]) for entry in of_text):
        finding += "; settings changed after the plan was seen"
    if others := {entry["sha256"] for entry in record} - {sha256}:
        finding += f"; {len(others)} other text(s) of the plan were seen too"
    if first["begun"]:
        return Check(subject, "no", finding)
    # An entry of an earlier version leaves room to choose the measurement after the runs.
    if first.get("measured") is None:
        return Check(
            subject, "open", f"{finding}; how its metrics were to be measured is not recorded"
        )
    return Check(subject, "yes", finding)


def _dropped(record: Record, sha256: str) -> list[str]:
    """Return the runs that had begun with these settings, and that the grid has no longer."""
    alike = _alike(record, sha256)
    ever = dict.fromkeys(name for entry in alike for name in entry["cells"])
    last = alike[-1] if alike else {"begun": (), "cells": ()}
    return [name for name in ever if name in last["begun"] and name not in last["cells"]]


def _seeds(
    stated: Sequence[int], some: Sequence[int], whole: Sequence[int], dropped: Sequence[str]
) -> Check:
    subject = "these seeds and no others"
    if dropped:
        return Check(
            subject, "no", f"{', '.join(dropped)} had begun, and the grid no longer has them"
        )
    if others := [seed for seed in some if seed not in stated]:
        return Check(subject, "no", f"seed {', '.join(map(str, others))} was run and is not stated")
    kept: Literal["yes", "open"] = "yes" if len(whole) == len(stated) else "open"
    return Check(subject, kept, f"{len(whole)} of {len(stated)} seeds have all values")


def checks(study: StudyResults, record: Record) -> tuple[Check, ...]:
    """Return whether each part of a stated plan was kept; ``record`` is what the workflow has seen
    of it."""
    stated = study.plan.stated
    assert stated is not None
    some, whole = seeds_with_values(study)
    return (
        stated_in_advance(record, stated.sha256),
        _seeds(stated.plan.seeds, some, whole, _dropped(record, stated.sha256)),
    )


def plan_checks(material: Material) -> tuple[Check, ...]:
    """Return whether the stated plan of a study was kept."""
    return checks(material.study, read_record(material.study_dir))


def in_advance(found: tuple[Check, ...]) -> bool:
    """Tell whether the record says that the plan was there before the first of its runs had
    begun."""
    return found[0].kept == "yes"


def _planned(plan: StatedPlan, each: Hypothesis) -> tuple[str, str, str]:
    """Return as text what is expected, the power of all stated seeds, and the seeds needed."""
    if each.difference is None or each.spread is None:
        return MISSING, MISSING, MISSING
    design = PAIRED if each.test == "paired" else UNPAIRED
    effect = each.difference / each.spread
    # Under Holm the first of the hypotheses has Bonferroni's level.
    alpha = plan.alpha / (1 if plan.correction == "none" else len(plan.hypotheses))
    needed = seeds_needed(effect, design, alpha)
    power = power_of(effect, len(plan.seeds), design, alpha)
    expected = f"{significant(each.difference)} ± {significant(each.spread)}"
    return expected, f"{100 * power:.0f} %", MISSING if math.isnan(needed) else f"{needed:.0f}"


def stated_table(layout: Layout) -> list[list[str]]:
    """Return what ``plan`` says of a stated plan, header first: the power of its seeds if it
    expects rightly."""
    assert layout.plan.stated is not None
    plan = layout.plan.stated.plan
    table = [["hypothesis", "metric", "expected", "seeds", "power", f"for {100 * POWER:g} %"]]
    for each in plan.hypotheses:
        expected, power, needed = _planned(plan, each)
        table.append([each.name, each.metric, expected, str(len(plan.seeds)), power, needed])
    return table
