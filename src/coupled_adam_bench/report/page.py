"""``report/index.html``: did it reproduce? One page that needs nothing else."""

import base64
from collections import Counter
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench import paths
from coupled_adam_bench.files import read_json, write_text
from coupled_adam_bench.plan import Plan
from coupled_adam_bench.report import formats
from coupled_adam_bench.report.figures import figures_of
from coupled_adam_bench.report.published import PUBLISHED
from coupled_adam_bench.report.render import html_environment
from coupled_adam_bench.report.table import build_tables
from coupled_adam_bench.report.theory import ADAM, COUPLED
from coupled_adam_bench.report.theory_figures import THEORY_FIGURES
from coupled_adam_bench.report.theory_section import theory_section
from coupled_adam_bench.report.variants import variant_section
from coupled_adam_bench.results.collect import read_results
from coupled_adam_bench.results.groups import UNTESTED, Group, table_groups, table_values
from coupled_adam_bench.results.schema import METRICS, Metric
from coupled_adam_bench.statistics.compare import read_tests, winners
from coupled_adam_bench.statistics.t_test import summarize

if TYPE_CHECKING:
    from pandas import DataFrame

# The paper's claim on embeddings [P]: isotropic, around the origin, and closer to what people think of words.
CLAIMED = ("isotropy", "mean_norm_ratio", "r_bar")


@dataclass(frozen=True)
class Score:
    """In how many groups of a table each optimizer has the bold value of a metric; ``wins`` is by its key."""

    metric: Metric
    wins: dict[str, int]
    undecided: int
    untestable: int


@dataclass(frozen=True)
class Scorecard:
    """The scores of a table; ``labels`` of its optimizers are by key."""

    table: str
    n_groups: int
    tested: bool
    labels: dict[str, str]
    scores: tuple[Score, ...]

    def headline(self, key: str) -> list[tuple[int, list[Metric]]]:
        """Return (wins, metrics) of an optimizer, the most wins first, metrics with as many wins together."""
        found: dict[int, list[Metric]] = {}
        for score in self.scores:
            found.setdefault(score.wins[key], []).append(score.metric)
        return sorted(found.items(), reverse=True)


@dataclass(frozen=True)
class Verdict:
    """The paper's claim on embeddings in one table: in how many of ``total`` comparisons it holds, and the loss."""

    table: str
    tested: bool
    word: str
    holds: int
    total: int
    n_groups: int
    loss: Score


@dataclass(frozen=True)
class Beside:
    """A published number and ours."""

    source: str
    tokens_label: str
    model_label: str
    optimizer: str
    metric: Metric
    published: str
    ours: str
    difference: str


def scorecards(plan: Plan, tests: "DataFrame") -> tuple[Scorecard, ...]:
    """Count the winners of every table of a study."""
    best = winners(tests)
    # A comparison without a difference or, if it is a test, without a p-value could not be made.
    blocked = {
        (row["table"], row["n_params"], row["n_tokens"], row["metric"])
        for row in tests.to_dict("records")
        if isnan(row["difference"]) or (row["rule"] == "t-test" and isnan(row["p_value"]))
    }
    cards = []
    for table, groups in table_groups(plan).items():
        labels = {key: cells[0].optimizer.label for group in groups for key, cells in group.cells.items()}
        scores = []
        for metric in METRICS.values():
            places = [(table, group.n_params, group.n_tokens, metric.name) for group in groups]
            decided = [best.get(place) for place in places]
            open_places = [place for place, winner in zip(places, decided, strict=True) if winner is None]
            untestable = sum(place in blocked for place in open_places)
            wins = {key: decided.count(key) for key in labels}
            scores.append(Score(metric, wins, len(open_places) - untestable, untestable))
        cards.append(Scorecard(table, len(groups), table != UNTESTED, labels, tuple(scores)))
    return tuple(cards)


def verdicts(cards: tuple[Scorecard, ...]) -> tuple[Verdict, ...]:
    """Judge the paper's claim in every table that compares just Adam and Coupled Adam."""
    found = []
    for card in cards:
        if set(card.labels) == {ADAM, COUPLED}:
            scores = {score.metric.name: score for score in card.scores}
            holds = sum(scores[name].wins[COUPLED] for name in CLAIMED)
            total = len(CLAIMED) * card.n_groups
            word = "Reproduced" if holds == total else "Partly reproduced" if holds else "Not reproduced"
            found.append(Verdict(card.table, card.tested, word, holds, total, card.n_groups, scores["loss"]))
    return tuple(found)


def beside_published(plan: Plan, results: "DataFrame") -> list[Beside]:
    """Return the paper's numbers for the sizes and tokens that this study has too, each with ours."""
    values = table_values(plan, results)
    groups: dict[tuple[str, str], Group] = {}
    for found in table_groups(plan).values():
        for group in found:
            groups.setdefault((group.tokens_label, group.model_label), group)
    rows = []
    for row in PUBLISHED:
        shared = groups.get((row.tokens_label, row.model_label))
        if shared is None or row.optimizer not in shared.cells:
            continue
        label = shared.cells[row.optimizer][0].optimizer.label
        for name, value in row.means.items():
            metric = METRICS[name]
            ours = summarize(shared.samples(values, metric)[row.optimizer])
            texts = (
                formats.fixed(value, metric.digits),
                formats.shorthand(ours, metric.digits),
                formats.fixed(ours.mean - value, metric.digits),
            )
            rows.append(Beside(row.source, row.tokens_label, row.model_label, label, metric, *texts))
    return rows


def _figure(path: Path) -> str:
    """Return an SVG file as a data URI: its ids then cannot collide with those of the others on the page."""
    try:
        svg = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{path}: missing; draw the figures first") from None
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def _environments(cells: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return every value of every item of the runs' environments."""
    found: dict[str, dict[str, None]] = {}
    for cell in cells:
        for name, value in cell["environment"].items():
            found.setdefault(name, {})[str(value)] = None
    return {name: list(values) for name, values in found.items()}


def write_report(plan: Plan, study_dir: Path, templates_dir: Path, runs: Path = paths.RESULTS / "runs") -> None:
    """Write ``report/index.html`` from the results, tests, figures and manifest in ``study_dir``, and from ``runs``."""
    results, tests = read_results(study_dir / "results.csv"), read_tests(study_dir / "tests.csv")
    manifest = read_json(study_dir / "manifest.json")
    cards = scorecards(plan, tests)
    groups = {
        (group.table, group.n_params, group.n_tokens): group for found in table_groups(plan).values() for group in found
    }
    figures = {name: (_figure(study_dir / "figures" / f"{name}.svg"), text) for name, text in figures_of(plan).items()}
    environment = html_environment(templates_dir)
    environment.filters |= {
        "fixed": formats.fixed,
        "significant": formats.significant,
        "p_value": formats.p_value,
        "plural": formats.plural,
    }
    page = environment.get_template("report.html.j2").render(
        plan=plan,
        generated=any(part.study.data.source.kind == "synthetic" for part in plan.parts),
        statuses=Counter(cell["status"] for cell in manifest["cells"]),
        verdicts=verdicts(cards),
        cards={card.table: card for card in cards},
        tables=build_tables(plan, results, tests),
        variants=variant_section(plan, results),
        figures={name: figure for name, figure in figures.items() if name not in THEORY_FIGURES},
        theory=theory_section(plan, runs),
        theory_figures={name: figure for name, figure in figures.items() if name in THEORY_FIGURES},
        published=beside_published(plan, results),
        tests=tests.to_dict("records"),
        groups=groups,
        metrics=METRICS,
        manifest=manifest,
        environments=_environments(manifest["cells"]),
        candidate=COUPLED,
        reference=ADAM,
    )
    write_text(study_dir / "report" / "index.html", page)
