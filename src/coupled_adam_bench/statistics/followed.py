"""Whether a study followed its stated plan: stated in advance, measured alike, these seeds and looks and no others."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.stated import CONFIRMED, EARLY, NOT_CONFIRMED, meant_groups

Record = Sequence[Mapping[str, Any]]
"""What the workflow has seen of a stated plan, as ``stated.read_record`` returns it."""


@dataclass(frozen=True)
class Check:
    """What a plan asks for, whether it was kept (``open``: not known, or not yet), and what was found."""

    subject: str
    kept: Literal["yes", "no", "open"]
    finding: str


def seeds_with_values(study: StudyResults) -> tuple[list[int], list[int]]:
    """Return the seeds that have a value of any stated comparison, and those of them that have all values."""
    assert study.plan.stated is not None
    found: dict[int, list[bool]] = {}
    n_values = 0
    for hypothesis in study.plan.stated.plan.hypotheses:
        for group in meant_groups(study.layout, hypothesis):
            for key in (hypothesis.better, hypothesis.than):
                n_values += 1
                for cell in group.cells[key]:
                    value = study.values.get((cell.id, hypothesis.metric), math.nan)
                    found.setdefault(cell.seed, []).append(math.isfinite(value))
    some = [seed for seed, there in found.items() if any(there)]
    return some, [seed for seed in some if sum(found[seed]) == n_values]


def _alike(record: Record, sha256: str) -> list[Mapping[str, Any]]:
    """Return the entries with this text whose runs have the settings of the last of them, whatever their seeds."""
    seen = [entry for entry in record if entry["sha256"] == sha256]
    return [entry for entry in seen if _settings(entry) == _settings(seen[-1])]


def _settings(entry: Mapping[str, Any]) -> set[str]:
    return set(entry["cells"].values())


def _in_advance(record: Record, sha256: str) -> Check:
    subject = "stated in advance"
    alike = _alike(record, sha256)
    if not alike:
        return Check(subject, "open", "it is not recorded when this text was first seen; the workflow records it")
    first = alike[0]
    finding = (
        f"this text with these settings was first seen on {first['at']}, when {len(first['begun'])} of "
        f"{first['n_cells']} runs had begun"
    )
    of_text = [_settings(entry) for entry in record if entry["sha256"] == sha256]
    if any(settings != of_text[0] for settings in of_text):
        finding += "; settings changed after the plan was seen"
    if others := {entry["sha256"] for entry in record} - {sha256}:
        finding += f"; {len(others)} other text(s) of the plan were seen too"
    return Check(subject, "no" if first["begun"] else "yes", finding)


def _measured_alike(record: Record, sha256: str) -> Check:
    subject = "metrics unchanged"
    of_text = [entry for entry in record if entry["sha256"] == sha256]
    if not of_text:
        return Check(subject, "open", "it is not recorded how they were to be measured")
    n_before = sum(not entry["begun"] for entry in of_text)
    seen = [entry["measured"] for entry in of_text[max(0, n_before - 1) :]]
    changed = sorted({stage for entry in seen for stage in seen[0] | entry if entry.get(stage) != seen[0].get(stage)})
    if changed:
        return Check(subject, "no", f"settings or version of {', '.join(changed)} changed after this text was seen")
    return Check(subject, "yes", f"settings and version of {', '.join(seen[0])} are those of the time")


def _dropped(record: Record, sha256: str) -> list[str]:
    """Return the runs that had begun with these settings, and that the grid has no longer."""
    alike = _alike(record, sha256)
    return [
        name
        for name in dict.fromkeys(n for entry in alike for n in entry["cells"])
        if name in alike[-1]["begun"] and name not in alike[-1]["cells"]
    ]


def _seeds(stated: Sequence[int], some: Sequence[int], whole: Sequence[int], dropped: Sequence[str]) -> Check:
    subject = "these seeds and no others"
    if dropped:
        return Check(subject, "no", f"{', '.join(dropped)} had begun, and the grid no longer has them")
    if others := [seed for seed in some if seed not in stated]:
        return Check(subject, "no", f"seed {', '.join(map(str, others))} was run and is not stated")
    n_first = n_leading(stated, whole)
    if skipped := [
        seed for seed in stated[: n_first + 1] if seed not in whole and set(stated[n_first + 1 :]) & set(some)
    ]:
        return Check(subject, "no", f"seed {skipped[0]} has not all values, and seeds after it have some")
    missing = len(stated) - n_first
    return Check(
        subject, "yes", f"{n_first} of {len(stated)} seeds have all values" + (", in their order" if missing else "")
    )


def n_leading(stated: Sequence[int], whole: Sequence[int]) -> int:
    """Return how many of the stated seeds, from the first on, have all values."""
    return next((number for number, seed in enumerate(stated) if seed not in whole), len(stated))


def _looks(looks: Sequence[int], n_first: int, outcomes: Mapping[str, tuple[str, int]]) -> Check:
    """Return the check of the looks; ``outcomes`` are (outcome, seeds at the last look that counts) by hypothesis."""
    subject = "tested at the stated looks"
    decided = all(outcome in (CONFIRMED, EARLY, NOT_CONFIRMED) for outcome, _ in outcomes.values())
    last = max(seeds for _, seeds in outcomes.values())
    if decided and n_first > last:
        return Check(
            subject, "no", f"all was decided at {last} seeds, and {n_first} were run; the later ones do not count"
        )
    if decided:
        return Check(subject, "yes", f"all was decided at {last} seeds")
    coming = next((look for look in looks if look > n_first), looks[-1])
    return Check(subject, "open", f"{n_first} seeds have all values; the next look is at {coming}")


def checks(study: StudyResults, record: Record, outcomes: Mapping[str, tuple[str, int]]) -> tuple[Check, ...]:
    """Return whether each part of a stated plan was kept; ``record`` is what the workflow has seen of it."""
    stated = study.plan.stated
    assert stated is not None
    some, whole = seeds_with_values(study)
    return (
        _in_advance(record, stated.sha256),
        _measured_alike(record, stated.sha256),
        _seeds(stated.plan.seeds, some, whole, _dropped(record, stated.sha256)),
        _looks(stated.plan.looks, n_leading(stated.plan.seeds, whole), outcomes),
    )
