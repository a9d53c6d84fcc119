"""What the stated plan of the study `regime` says of one optimizer alone, with 95 % intervals over
seeds.

    python research/regime/criteria.py [--results results] > research/regime/criteria.csv

Tests compare two optimizers, so these come from the histories of the runs: the exponent of Adam's
second moment by how often a batch has the token, the mean-norm ratio when the rates sum to 0.2,
Ember's isotropy, and the drift of tied contexts. Each line has what was stated, and whether the
whole interval lies within it.
"""

import argparse
import csv
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from coupled_adam_bench.results.sample import summarize
from coupled_adam_bench.statistics.student import interval
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.runs import run_history
from coupled_adam_bench.study.plan import load_plan
from coupled_adam_bench.study.plan.cells import Cell

ADAM, COUPLED_ADAM, EMBER = "adamw", "coupled_adam", "ember"
EXPONENTS = {  # by how often a batch has the token: what was stated
    "below_0.05": (1.5, math.inf),
    "0.05_to_0.2": (-math.inf, math.inf),
    "0.2_to_1": (0.9, 1.1),
    "1_to_10": (0.9, 1.1),
    "above_10": (0.9, 1.1),
}
RATES_SUM = 0.2

Line = tuple[str, str, str, Sequence[float], tuple[float, float]]


def at_the_sum_of_rates(history: list[dict[str, float]], total: float) -> float:
    """Return the mean-norm ratio when the rates sum to ``total``, on a line between the two records
    around it."""
    records = [record for record in history if "rate_sum" in record and "mean_norm_ratio" in record]
    before = [record for record in records if record["rate_sum"] <= total]
    after = [record for record in records if record["rate_sum"] > total]
    if not before or not after:
        return math.nan
    first, second = before[-1], after[0]
    share = (total - first["rate_sum"]) / (second["rate_sum"] - first["rate_sum"])
    return first["mean_norm_ratio"] + share * (second["mean_norm_ratio"] - first["mean_norm_ratio"])


def lines(results: Path) -> Iterator[Line]:
    """Yield criterion, study, quantity, values of the seeds and what was stated."""
    plan = load_plan(results / "regime" / "plan.json")
    histories = {
        cell.id: run_history(paths.run_dir(cell.id, results))
        for cell in (*plan.cells.values(), *plan.tuning_cells.values())
    }
    # Histories without a record of the geometry are of runs that have not begun.
    last = {
        cell: next((record for record in reversed(history) if "isotropy" in record), {})
        for cell, history in histories.items()
    }

    def ends(study: str, optimizer: str, key: str) -> list[float]:
        return [
            last[cell.id].get(key, math.nan)
            for cell in plan.cells.values()
            if (cell.study.name, cell.optimizer.key, cell.steps) == (study, optimizer, 2000)
        ]

    batches = [f"regime_batch_{size}" for size in ("2k", "16k", "98k", "393k")]
    for study in (*batches, *(f"regime_vocab_{size}" for size in ("4k", "16k", "128k"))):
        for name, stated in EXPONENTS.items():
            yield "exponent", study, name, ends(study, ADAM, f"moment_exponent_{name}"), stated
    ratios: dict[str, list[float]] = defaultdict(list)
    for cell in (*plan.tuning_cells.values(), *plan.cells.values()):
        # Centering sets the ratio to 0, whatever the rate.
        if (
            cell.study.name == "regime_head"
            and cell.optimizer.name == ADAM
            and not cell.optimizer.mu_centering
        ):
            ratios[name_of_rate(cell)].append(at_the_sum_of_rates(histories[cell.id], RATES_SUM))
    for name, values in sorted(ratios.items()):
        yield "ratio when the rates sum to 0.2", "regime_head", name, values, (0.8, 1)
    own = [
        last[cell.id].get("isotropy", math.nan)
        for cell in plan.cells.values()
        if (cell.study.name, cell.optimizer.name, cell.steps) == ("regime_head", EMBER, 2000)
        and cell.tuning
    ]
    yield "isotropy at its own rate", "regime_head", EMBER, own, (0, 0.5)
    tied = {
        size: ends(f"regime_tied_{size}", COUPLED_ADAM, "mean_norm_ratio") for size in ("2k", "98k")
    }
    differences = [one - other for one, other in zip(tied["2k"], tied["98k"], strict=True)]
    yield "drift of tied contexts", "2k - 98k", COUPLED_ADAM, differences, (-0.05, 0.05)
    for size, values in tied.items():
        untied = ends(f"regime_batch_{size}", COUPLED_ADAM, "mean_norm_ratio")
        added = [one - other for one, other in zip(values, untied, strict=True)]
        yield "drift of tied contexts", f"tied - untied, {size}", COUPLED_ADAM, added, (0, 1)


def name_of_rate(cell: Cell) -> str:
    """Return what differs between the Adams of block A."""
    return (
        f"{cell.optimizer.key}, {cell.steps} steps"
        if cell.tuning is None
        else f"{cell.optimizer.key}, own rate"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("results"))
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(
        (
            "criterion",
            "study",
            "of",
            "seeds",
            "mean",
            "low",
            "high",
            "stated_low",
            "stated_high",
            "holds",
        )
    )
    for criterion, study, of, all_values, (low, high) in lines(parser.parse_args().results):
        sample = summarize([value for value in all_values if not math.isnan(value)])
        ends = (
            interval(sample.mean, sample.sd / math.sqrt(sample.n), sample.n - 1)
            if sample.n > 1
            else (math.nan,) * 2
        )
        undecided = sample.n < 2 or (math.isinf(high - low) and low == -high)
        holds = "" if undecided else str(low <= ends[0] and ends[1] <= high).lower()
        rows.writerow((criterion, study, of, sample.n, sample.mean, *ends, low, high, holds))


if __name__ == "__main__":
    main()
