"""What stands above and below a printed table, in sentences."""

import math
from collections.abc import Iterator

from pandas import DataFrame

from coupled_adam_bench.report.numbers import fixed
from coupled_adam_bench.results.values import PLACE
from coupled_adam_bench.statistics.tests import ALPHA
from coupled_adam_bench.study.catalogue.metrics import METRICS
from coupled_adam_bench.study.catalogue.tables import TABLES, Table
from coupled_adam_bench.study.plan import Plan


def caption(plan: Plan, table: Table, values: DataFrame) -> str:
    """Return what stands above a table."""
    labels = values["label"].unique()
    what = " and ".join(labels) if len(labels) == 2 else "Embedding optimizers"
    title = "" if table.name in TABLES else f"{table.title.removesuffix('.')}. "
    study = plan.study.title or plan.study.study
    return f"{title}{what} at D training tokens and N parameters. Study: {study}."


def _seeds_and_bold(table: Table, values: DataFrame) -> Iterator[str]:
    """Say what the numbers mean, and what is bold."""
    counts = values.groupby([*PLACE, "optimizer"])["seed"].nunique()
    seeds = " to ".join(map(str, sorted({int(counts.min()), int(counts.max())})))
    if seeds == "1":
        yield "Single runs, one seed each."
    else:
        yield (
            f"Mean and sample standard deviation over {seeds} seeds: 0.123 (4) means 0.123 ± 0.004."
        )
    if not table.rules.tested:
        yield f"Bold: better than {table.rules.bold_beats}; no test."
        return
    yield (
        f"Bold: significantly better than {table.rules.bold_beats} (one-sided Student's t-test of"
        f" the unrounded values, pooled variance, p < {ALPHA:g})."
    )


def _missing(values: DataFrame, runs: DataFrame) -> Iterator[str]:
    """Say which values are missing, and why."""
    measured = values.groupby("metric", sort=False)["value"].count()
    left_out = measured[measured == 0].index
    if measured.any() and len(left_out):
        names = ", ".join(METRICS[name].description for name in left_out)
        yield f"Left out, since no run has a value: {names}."
        values = values[~values["metric"].isin(left_out)]
    lacks = values["value"].isna()
    cells = lacks.groupby([values[name] for name in [*PLACE, "optimizer", "metric"]]).any()
    if not cells.any():
        return
    reasons = []
    lacking = values[lacks].merge(runs, on="cell")
    columns = ["label", "tokens_label", "size_label", "status"]
    for key, found in lacking.groupby(columns, sort=False):
        label, tokens, size, why = map(str, key)
        seeds = ", ".join(map(str, found["seed"].unique()))
        if why == "completed":
            symbols = ", ".join(METRICS[metric].plain for metric in found["metric"].unique())
            why = f"{symbols} not measured or undefined"
        reasons.append(f"{label} at D = {tokens}, N = {size}, seed {seeds}: {why}")
    more = f"; and {len(reasons) - 4} more" if len(reasons) > 4 else ""
    yield (
        f"Missing (-): {cells.sum()} of {len(cells)} values. {'; '.join(reasons[:4])}{more}."
        " Where an optimizer lacks only some of its seeds, nothing in that column of its block is"
        " bold."
    )


def _rests_on(table: Table, results: DataFrame) -> Iterator[str]:
    """Say how much text, how many items and how many pairs of words the numbers rest on."""
    largest = results.groupby(["metric", "task"], sort=False)["value"].max().dropna()

    def of(metric: str) -> dict[str, int]:
        """Return what a count is for each task."""
        found = largest[largest.index.get_level_values("metric") == metric].droplevel("metric")
        return {str(task): int(value) for task, value in found.items()}

    there, cut, prompts = of("n_items_of"), of("n_cut"), of("n_prompts")
    tasks = []
    for task, n in of("n_items").items():
        is_few = n < there.get(task, n)
        rests = f"the first {n:,} of {there[task]:,} items" if is_few else f"{n:,} items"
        if cut.get(task):
            rests += f", {cut[task]:,} of {prompts[task]:,} prompts longer than the window and cut"
        tasks.append(f"{task} ({rests})")
    if tasks and "acc" in table.columns:
        yield f"Acc is the mean over {', '.join(tasks)}."
    lists = [f"{name} ({n:,} pairs)" for name, n in of("n_pairs").items()]
    if lists and "r_bar" in table.columns:
        few = [name for name in of("n_pairs") if ("pearson_cosine", name) not in largest]
        why = f"; it is missing: too few pairs of {', '.join(few)}" if few else ""
        yield f"r̄ is the mean over {', '.join(lists)}{why}."


def _guessing(plan: Plan, values: DataFrame) -> Iterator[str]:
    """Say which losses are worse than that of equal probabilities."""
    guessing = math.log(plan.study.data.vocab_size)
    losses = values[(values["metric"] == "loss") & (values["value"] > guessing)]
    worse = losses.drop_duplicates([*PLACE, "optimizer"])
    places = [
        f"{row.label} at D = {row.tokens_label}, N = {row.size_label}" for row in worse.itertuples()
    ]
    if places:
        yield f"Worse than guessing, a loss above {fixed(guessing, 2)}: {'; '.join(places)}."


def notes_of(
    plan: Plan, table: Table, values: DataFrame, results: DataFrame, runs: DataFrame
) -> list[str]:
    """Return what stands below a table: what its numbers mean, lack, and rest on."""
    notes = [
        *_seeds_and_bold(table, values),
        *_missing(values, runs),
        *_guessing(plan, values),
        *_rests_on(table, results[results["cell"].isin(values["cell"])]),
    ]
    if plan.study.training.data_order == "per_rank":
        notes.append(
            "Seeds share much of their text, as in the authors' code, so the spread over seeds may"
            " be understated."
        )
    return [*notes, f"Protocol: {plan.study.protocol}."]
