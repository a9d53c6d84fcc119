"""Optimizers against each other in minutes, each at the learning rate that suits it.

Two small studies of a generated language: the first chooses a rate for each optimizer on validation
text, with a seed of its own; the second trains with these rates and other seeds, and is measured on
test text. Runs and bins are those of any study, so a stopped comparison goes on where it was.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import filterfalse
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from pandas import DataFrame, Series
from tqdm import tqdm

from coupled_adam_bench.results.collect import collect, endings
from coupled_adam_bench.statistics.tests import ALPHA, holm, t_tests
from coupled_adam_bench.store.runs import RESULTS, run_of
from coupled_adam_bench.study.base import meant
from coupled_adam_bench.study.catalogue.bands import BANDS
from coupled_adam_bench.study.optimizers import KINDS
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.study import parse_study
from coupled_adam_bench.tools.jobs import measured
from coupled_adam_bench.tools.start import start

Rule = str | dict[str, Any]
"""An optimizer: its name, ``my_module.MyOptimizer``, or an entry of a study."""
RATES = (1.0, 4.0, 16.0)
CHOOSING_SEED = 11
LOSS = "loss"
COLUMNS = {LOSS: "loss"} | {band.metric: band.label for band in BANDS} | {"isotropy": "Iso"}
"""The metrics of the table, and their heads."""
STUDY: dict[str, Any] = {
    "data": {
        "name": "generated",
        "source": {"kind": "synthetic", "n_words": 4095, "zipf_exponent": 1.1},
        "tokenizer": "word",
        "vocab_size": 4096,
        "split": {"val_fraction": 0.02, "test_fraction": 0.02},
    },
    "models": ["gpt2-2x64"],
    "training": {"seq_len": 64, "batch_sequences": 16, "warmup_steps": 20, "precision": "fp32"},
}


@dataclass(frozen=True, repr=False)
class Comparison:
    """What a comparison has found; printed, it is a table and a sentence for each optimizer."""

    runs: DataFrame
    """A row for each run: optimizer, rate, seed, how it ended and after which step, metrics."""
    tests: DataFrame
    """A row for each optimizer against the first: difference, interval, p and Holm's p."""
    winner: str | None
    """The optimizer that is better than each other one, if there is one."""
    text: str

    def __repr__(self) -> str:
        return self.text


def compare(
    optimizers: Sequence[Rule],
    rates: Sequence[float] = RATES,
    seeds: int | Sequence[int] = 3,
    *,
    tokens: int | str = "600K",
    name: str = "compare",
    cores: int | None = None,
) -> Comparison:
    """Train each optimizer at its best rate, and compare its losses with those of the first.

    A stopped call goes on where it was when it is called again, and a seed more trains only that.

    Args:
        optimizers: Two or more; the first is what the others are compared with.
        rates: Factors of the embedding's learning rate, of which each optimizer gets its best. It
            begins with the highest two, and goes on to lower or higher ones until its best has a
            worse one on either side; at most two steps beyond these rates.
        seeds: Their number, from 1 on, or the seeds; 11 is the one that chooses rates.
        tokens: Tokens on which each run is trained.
        name: The folder below ``results/``; that of the rates ends in ``_rates``.
        cores: How many runs train at a time; by default one on each processor.

    Raises:
        ValueError: An optimizer or another argument is wrong, or a run has failed.
    """
    if isinstance(optimizers, str) or len(optimizers) < 2:
        raise ValueError("optimizers: give two or more, such as ['adamw', 'module.MyOptimizer']")
    if isinstance(seeds, int):
        seeds = [seed for seed in range(1, seeds + 2) if seed != CHOOSING_SEED][:seeds]
    trainer = _Studies(tokens, name, cores or len(os.sched_getaffinity(0)))
    rules = trainer.rules([_entry_of(rule) for rule in optimizers], seeds)
    chosen, at_edge, tried = _choose(trainer, rules, sorted(set(rates)))
    if not chosen:
        raise ValueError("optimizers: all of them diverge, also at the lowest rates")
    runs = trainer.run(rules, list(chosen.items()), seeds, "test")
    first, *_ = rules
    losses = _losses(runs)
    tests, (winner, ending) = _tests(losses, first), _verdict(losses, first, at_edge)
    told = [_table(runs, at_edge), "", *_divergences(pd.concat([tried, runs]))]
    told += [_of_test(str(label), test, first) for label, test in tests.iterrows()]
    told += [
        ending,
        f"Loss: nat a token of test text, mean ± sd over seeds {', '.join(map(str, seeds))};"
        f" {STUDY['models'][0]} on a generated language, {tokens} tokens a run; the best rate of"
        f" each by validation text, seed {CHOOSING_SEED}. Numbers: {RESULTS / name / 'runs.csv'}",
    ]
    return Comparison(runs, tests, winner, "\n".join(told))


def _entry_of(rule: Rule) -> dict[str, Any]:
    """Return an optimizer as an entry of a study."""
    if isinstance(rule, str):
        try:
            rule = yaml.safe_load(rule)
        except yaml.YAMLError as error:
            raise ValueError(f"optimizers: {rule} is no YAML ({error})") from None
    if isinstance(rule, dict):
        return rule
    if not isinstance(rule, str):
        # Jobs import it, and cannot from a notebook.
        raise ValueError(f"optimizers: {rule} must be 'my_module.MyClass', written in a file here")
    if "." in rule:
        return {"name": "custom", "path": rule, "key": rule, "label": rule}
    if rule not in KINDS:
        known = ", ".join(KINDS)
        raise ValueError(
            f"optimizers: {rule} is none of {known} and no 'my_module.MyClass'{meant(rule, KINDS)}"
        )
    return {"name": rule}


def _at_rate(entry: dict[str, Any], rate: float) -> dict[str, Any]:
    """Return an entry whose learning rate is multiplied by ``rate``."""
    # Names that are given do not follow from the settings.
    given = {name: f"{entry[name]}_f{rate:g}" for name in ("key", "label") if name in entry}
    return entry | given | {"lr_factor": rate * entry.get("lr_factor", 1.0)}


@dataclass(frozen=True)
class _Studies:
    """Trains and measures in studies below ``results/``."""

    tokens: int | str
    name: str
    cores: int

    def rules(self, entries: list[dict[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
        """Return entries by their labels, when there are data and own optimizers are tried.

        ``ValueError`` in a sentence for one that is wrong.
        """
        plan, file = self._plan(entries, seeds, "test")
        start([["prepare", "--plan", str(file)]], Path())
        if plan.code:
            tried = str(file.with_name("tried.json"))
            start([["try", "--plan", str(file), "--out", tried]], Path())
        optimizers = plan.study.grid[0].optimizers
        return dict(zip((each.names()[1] for each in optimizers), entries, strict=True))

    def _plan(
        self, entries: Sequence[dict[str, Any]], seeds: Sequence[int], split: str
    ) -> tuple[Plan, Path]:
        """Write the plan of a study with these optimizers, and return it and its file."""
        name = self.name if split == "test" else f"{self.name}_rates"
        block = {"models": STUDY["models"], "tokens": [self.tokens], "optimizers": entries}
        values = STUDY | {
            "study": name,
            "grid": [block | {"seeds": list(seeds)}],
            "evaluation": {
                "test_loss": {"split": split},
                "word_similarity": "synthetic",
                "downstream": None,
            },
            "execution": {"eval_every": None},
        }
        plan, file = make_plan(parse_study(values, "compare")), RESULTS / name / "plan.json"
        plan.write(file)
        return plan, file

    def run(
        self,
        rules: dict[str, Any],
        grid: Sequence[tuple[str, float]],
        seeds: Sequence[int],
        split: str,
    ) -> DataFrame:
        """Run rules at rates, and return the runs with their metrics, NaN where one diverged."""
        entries = [_at_rate(rules[label], rate) for label, rate in grid]
        plan, file = self._plan(entries, seeds, split)
        self._train(plan, file)
        places = [(label, rate, seed) for label, rate in grid for seed in seeds]
        # The cells of a plan are in the order of its grid.
        runs = DataFrame(places, columns=["optimizer", "rate", "seed"], index=list(plan.cells))
        results = collect(plan)
        wanted = results[results["metric"].isin(COLUMNS)]
        metrics = wanted.set_index(["cell", "metric"])["value"].unstack()  # noqa: PD010
        ended = endings(plan).set_index("cell")
        found = runs.join([ended, metrics.reindex(columns=[*COLUMNS])])
        found.to_csv(file.with_name("runs.csv"), index_label="cell")
        return found

    def _train(self, plan: Plan, file: Path) -> None:
        """Train and measure what is not yet, and show how many runs are trained."""
        left = [*filterfalse(measured(plan), plan.cells)]
        command = ["train", "--evaluate", "--plan", str(file), "--cells"]
        shares = [left[first :: self.cores] for first in range(min(self.cores, len(left)))]
        # With miniters it is drawn when a run has ended, and not at each look.
        with tqdm(total=len(plan.cells), desc=plan.study.study, unit="run", miniters=1) as bar:

            def watch() -> None:
                trained = [cell for cell in plan.cells if run_of(cell).record.is_file()]
                bar.update(len(trained) - bar.n)

            start([[*command, *share] for share in shares], Path(), watch)
            watch()


def _choose(
    trainer: _Studies, rules: dict[str, Any], rates: list[float]
) -> tuple[dict[str, float], set[str], DataFrame]:
    """Return the best rate of each rule, the rules whose best is at an edge, and the runs.

    ``rates`` ascend. A rule that diverges at all its rates goes on to a lower one.
    """
    if len(rates) == 1:
        return dict.fromkeys(rules, rates[0]), set(), DataFrame()
    lower, higher = rates[0] / rates[1], rates[-1] / rates[-2]
    below = [rates[0] * lower**2, rates[0] * lower]
    all_rates = [*below, *rates, rates[-1] * higher, rates[-1] * higher**2]
    # Each rule has those from a first to an end, and begins with the highest two that were given.
    ends, before = dict.fromkeys(rules, (len(rates), len(rates) + 2)), None
    while ends != before:
        before = dict(ends)
        grid = [(label, rate) for label in rules for rate in all_rates[slice(*ends[label])]]
        # Of earlier rounds, the runs are there.
        tried = trainer.run(rules, grid, [CHOOSING_SEED], "val")
        losses = tried.fillna({LOSS: math.inf})
        best = losses.loc[losses.groupby("optimizer", sort=False)[LOSS].idxmin()]
        for label, rate in zip(best["optimizer"], best["rate"], strict=True):
            first, end = ends[label]
            if rate == all_rates[first]:
                ends[label] = (max(first - 1, 0), end)
            elif rate == all_rates[end - 1]:
                ends[label] = (first, min(end + 1, len(all_rates)))
    trained = best[best[LOSS] < math.inf]
    at_edge = trained[trained["rate"].isin([all_rates[0], all_rates[-1]])]
    chosen = dict(zip(trained["optimizer"], trained["rate"], strict=True))
    return chosen, {*at_edge["optimizer"]}, tried


def _table(runs: DataFrame, at_edge: set[str]) -> str:
    """Return the table: means over seeds with standard deviations."""
    rows = []
    for label, of_rule in runs.groupby("optimizer", sort=False):
        edge = ", at the edge" if label in at_edge else ""
        row = {"optimizer": label, "rate": f"x {of_rule['rate'].iloc[0]:g}{edge}"}
        for metric, head in COLUMNS.items():
            mean, sd = of_rule[metric].mean(skipna=False), of_rule[metric].std(skipna=False)
            row[head] = f"{mean:.3f}" if math.isnan(sd) else f"{mean:.3f} ± {sd:.3f}"
        rows.append(row)
    return DataFrame(rows).replace("nan", "-").to_string(index=False)


def _divergences(runs: DataFrame) -> list[str]:
    """Return a sentence for each run that has diverged."""
    return [
        f"{run['optimizer']} diverged in step {run['step']} (rate x {run['rate']:g},"
        f" seed {run['seed']})."
        for run in runs[runs["status"] == "diverged"].to_dict("records")
    ]


def _losses(runs: DataFrame) -> DataFrame:
    """Return the losses by seed (rows) of each optimizer that has trained with every seed."""
    losses = runs.set_index(["seed", "optimizer"])[LOSS].unstack()  # noqa: PD010
    return losses[runs["optimizer"].unique()].dropna(axis="columns")


def _tests(losses: DataFrame, reference: str) -> DataFrame:
    """Return the paired test of each optimizer against one, with Holm's p over these."""
    rivals = [label for label in losses if label != reference and reference in losses]
    of_seed = losses.to_dict()
    rows = [t_tests(of_seed[label], of_seed[reference], higher=False) for label in rivals]
    columns = ["difference", "low", "high", "p_paired", "reason"]
    tests = DataFrame(rows, index=rivals, columns=columns)
    return tests.assign(p_holm=holm(tests["p_paired"].astype(float)))


def _verdict(losses: DataFrame, first: str, at_edge: set[str]) -> tuple[str | None, str]:
    """Return the optimizer of the lowest loss if it is told apart from each other one, and say it.

    While the best rate of an optimizer lies at an edge, none is named.
    """
    if first not in losses or len(losses.columns) == 1:
        return (
            None,
            f"Nothing is compared: only {' and '.join(map(str, losses)) or 'none'} has trained.",
        )
    if at_edge:
        edges = " and ".join(sorted(at_edge))
        return None, f"No winner is named: a better rate of {edges} may lie beyond the edge."
    lowest = str(losses.mean().idxmin())
    found = [*_tests(losses, lowest)["p_holm"], *_tests(losses, first)["p_holm"].filter([lowest])]
    if all(p < ALPHA for p in found):
        return lowest, f"The winner is {lowest}."
    return None, "There is no winner."


def _of_test(label: str, test: Series, first: str) -> str:
    """Return in words how the loss of an optimizer differs from that of the first."""
    if test["difference"] == 0:
        return f"{label} has the same loss as {first}."
    is_lower = test["difference"] < 0
    amount = f"{abs(test['difference']):.2g} nat a token {'lower' if is_lower else 'higher'}"
    if math.isnan(test["p_holm"]):
        return f"{label} is not tested against {first}: its loss is {amount}; {test['reason']}."
    basis = f"95 % interval {test['low']:+.2g} to {test['high']:+.2g}"
    basis += f", p {test['p_holm']:.2g} after Holm"
    word = "better" if is_lower else "worse"
    how = f"{word} than" if test["p_holm"] < ALPHA else "not told apart from"
    return f"{label} is {how} {first}: its loss is {amount} ({basis})."
