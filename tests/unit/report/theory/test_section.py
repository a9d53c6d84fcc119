import re
from collections.abc import Callable
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pytest
from sections import grids, lines

from coupled_adam_bench.page.blocks import Items, Text
from coupled_adam_bench.report.figures import figures_in, figures_of
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.tools.theory.records import LARGEST, Record, TheoryGroup, read_theory
from coupled_adam_bench.tools.theory.section import STATEMENTS, Check, answer_open_question, theory

OUTPUT, INPUT, BALANCED, ADAM, LINE = range(5)


@pytest.fixture(scope="session")
def groups(fake_theory: Any) -> tuple[TheoryGroup, ...]:
    return read_theory(layout_of(fake_theory.plan), fake_theory.root / "runs")


def changed(
    groups: tuple[TheoryGroup, ...],
    change: Callable[[Record], Record],
    which: Callable[[TheoryGroup], bool],
) -> list[TheoryGroup]:
    """Change the first record of the groups that are meant."""
    return [
        (
            replace(group, records=(change(group.records[0]), *group.records[1:]))
            if which(group)
            else group
        )
        for group in groups
    ]


def check(groups: Any, index: int) -> Check:
    return Check(STATEMENTS[index], groups)


def put(record: Record, value: Any, *path: str) -> Record:
    """Return a record with another value at a path."""

    def inside(values: Any, path: tuple[str, ...]) -> Any:
        return values | {path[0]: inside(values[path[0]], path[1:])} if path else value

    return replace(record, values=inside(record.values, path))


def test_groups_are_cells_over_seeds(fake_theory: Any, groups: tuple[TheoryGroup, ...]) -> None:
    assert len(groups) == 4 * 2 * 3
    assert [record.cell.seed for record in groups[0].records] == [1, 2]
    keys = [(g.model_label, g.tokens_label, g.cell.optimizer.key) for g in groups]
    assert keys[:4] == [("1M", "D<1>", key) for key in ("adamw", "coupled_adam", "sgd_f500")] + [
        ("1Mu", "D<1>", "adamw")
    ]
    assert [keys.index(key) for key in (("1M", "D2", "adamw"), ("4M", "D<1>", "adamw"))] == [6, 12]
    assert len({group.shape for group in groups}) == 2
    assert sorted(c.id for c in fake_theory.plan.cells.values()) == sorted(
        r.cell.id for g in groups for r in g.records
    )


def test_every_statement_holds_in_the_drawn_runs(groups: tuple[TheoryGroup, ...]) -> None:
    found = [Check(statement, groups) for statement in STATEMENTS]
    # 8 places x (3 optimizers x 2 seeds, one diverged); half of them untied; Adam's.
    assert [len(c.values) for c in found] == [40, 40, 12, 8, 16]
    assert {c.verdict for c in found} == {"Holds here"}
    assert found[OUTPUT].finding == "Relative sum in float64 2e\u221216 to 4e\u221216, 40 runs."
    assert (
        found[BALANCED].finding == "Largest relative sum 3e\u221207, 12 runs."
    )  # 0.9 in the warmup
    assert found[LINE].finding == "R² 0.91 to 0.92, 16 runs."


def test_thresholds_decide(groups: tuple[TheoryGroup, ...]) -> None:
    def sums(side: str, value: float) -> Callable[[Record], Record]:
        return lambda record: put(record, value, "gradient_sum", side, "float64")

    def updates(value: float) -> Callable[[Record], Record]:
        return lambda record: put(record, value, "drift", "head", LARGEST)

    def fit(value: float) -> Callable[[Record], Record]:
        return lambda record: put(record, value, "second_moment", "r_squared")

    def untied(name: str) -> Callable[[TheoryGroup], bool]:
        return lambda group: not group.tied and group.cell.optimizer.name == name

    def first(group: TheoryGroup) -> bool:
        return group is groups[0]

    assert check(changed(groups, sums("output", 9e-13), first), OUTPUT).verdict == "Holds here"
    assert (
        check(changed(groups, sums("output", 1.1e-12), first), OUTPUT).verdict
        == "Holds in 39 of 40 runs"
    )
    assert (
        check(changed(groups, sums("input", 9e-4), first), INPUT).verdict
        == "Holds in 39 of 40 runs"
    )
    for name in ("coupled_adam", "sgd"):
        assert (
            check(changed(groups, updates(1.1e-5), untied(name)), BALANCED).verdict
            == "Holds in 8 of 12 runs"
        )
        assert check(changed(groups, updates(1.1e-5), untied(name)), ADAM).verdict == "Holds here"
    assert check(changed(groups, fit(0.84), first), LINE).verdict == "Holds in 15 of 16 runs"
    assert len(check(changed(groups, fit(nan), first), LINE).values) == 15
    wrong = [
        replace(
            g, records=tuple(sums("output", 0.5)(r) for r in g.records if r.find("gradient_sum"))
        )
        for g in groups
    ]
    assert check(wrong, OUTPUT).verdict == "Does not hold here"
    assert check(wrong, OUTPUT).tone == "bad"


@pytest.mark.parametrize(
    ("section", "field"), [("training", "embedding_weight_decay"), ("optimizer", "weight_decay")]
)
def test_weight_decay_and_the_warmup_do_not_count_as_sums_of_updates(
    groups: tuple[TheoryGroup, ...], section: str, field: str
) -> None:
    def decaying(group: TheoryGroup) -> TheoryGroup:
        def cell(record: Record) -> Any:
            return replace(
                record.cell,
                **{section: getattr(record.cell, section).model_copy(update={field: 0.1})},
            )

        return replace(
            group, records=tuple(replace(record, cell=cell(record)) for record in group.records)
        )

    found = check([decaying(group) for group in groups], BALANCED)
    assert (found.verdict, found.tone) == ("Not measured", "middle")
    assert found.finding == "No run of Coupled Adam or SGD without weight decay was measured."


def test_without_an_untied_head_nothing_is_said_of_it(groups: tuple[TheoryGroup, ...]) -> None:
    tied = [group for group in groups if group.tied]
    assert check(tied, BALANCED).verdict == "Not measured"
    assert check(tied, ADAM).finding == "The study has no run with an untied head."
    assert "untied" not in answer_open_question(tied)
    untied = [group for group in groups if not group.tied]
    assert answer_open_question(untied).startswith(
        "With tied weights and Coupled Adam, the share of the input side was not measured."
    )


def test_the_answer_is_computed(groups: tuple[TheoryGroup, ...]) -> None:
    # Coupled Adam: 1e-3 of 1.25e-3 comes from the input side, and the head moves by 2.5e-4; Adam:
    # 1e-3 of 1.001, and 1.
    assert (
        answer_open_question(groups)
        == "With tied weights and Coupled Adam, 80.0 % of the mean embedding's displacement comes"
        " from the input side (80.0 % over 8 runs); the displacement is 5 times that of the mean"
        " of an untied head. With tied weights and Adam, 0.1 % of the mean embedding's"
        " displacement comes from the input side (0.1 % over 8 runs); the displacement is 1"
        " times that of the mean of an untied head."
    )

    def other_share(record: Record) -> Record:
        return put(record, 0.4, "drift", "embedding", "input_share")

    def is_coupled(group: TheoryGroup) -> bool:
        return group.tied and group.cell.optimizer.key == "coupled_adam"

    assert (
        "60.0 % of the mean embedding's displacement comes from the input side (40.0 % to 80.0 %"
        " over 8 runs)" in (answer_open_question(changed(groups, other_share, is_coupled)))
    )

    def rounding(record: Record) -> Record:
        return put(record, None, "drift", "head", "output_share") if record.matrices else record

    still = groups
    for group in groups:
        if not group.tied:
            still = tuple(
                replace(g, records=tuple(map(rounding, g.records))) if g is group else g
                for g in still
            )
    assert (
        answer_open_question(still).count(
            "of an untied head, which moves by no more than rounding."
        )
        == 2
    )


def test_page_shows_the_section(fake_theory: Any) -> None:
    page = (fake_theory.study_dir / "report" / "index.html").read_text()
    section = page[page.index('<section id="theory">') : page.index('<section id="statistics">')]
    assert '<a href="#theory">Theory</a>' in page
    assert section.count("Holds here") == 5
    assert "80.0 % of the mean embedding&#39;s displacement comes from the input side" in section
    assert section.count("<img") == len(figures_in("theory")) == 4
    tables = re.findall(r"<tbody>.*?</tbody>", section, flags=re.DOTALL)
    assert [table.count("<tr>") for table in tables] == [5, 24, 12 + 2 * 12]
    assert "D&lt;1&gt;" in tables[1]
    assert "<b>" not in section
    assert "&lt;b&gt;is not split&lt;/b&gt;" in section
    diverged = [
        cell.id
        for cell in fake_theory.plan.cells.values()
        if (cell.optimizer.name, cell.seed) == ("sgd", 2)
    ]
    assert len(diverged) == 8
    (line,) = re.findall(r"<li>loss not finite in step 60 \(8 runs\): (.*)</li>", section)
    assert sorted(re.findall(r"<code>(.*?)</code>", line)) == sorted(diverged)
    assert "at most 2e\u221207 (relative)" in section


def test_rows_show_what_is_missing(fake_theory: Any, drawn_from: Any) -> None:
    blocks = list(theory(drawn_from(fake_theory.plan, fake_theory.root / "runs")))
    _, gradients, drift = map(lines, grids(blocks))
    remarks = blocks[-1]
    assert isinstance(remarks, Items)
    assert [item.count("<code>") for item in remarks.items] == [
        8,
        8,
    ]  # of SGD, one seed not split, one diverged
    assert gradients[0][4:9] == ["2", "6e\u221208", "4e\u221216", "0.31", "0.3"]
    assert (gradients[0][-1], gradients[1][-1], gradients[2][4]) == ("0.915", "-", "1 of 2")
    assert [drift[1][index] for index in (2, 7, 8, 9, 10)] == ["tied", "0.1", "80.0", "20.0", "0.0"]
    assert drift[2][5] == "0.00138"
    assert drift[2][8:] == ["-", "-", "-", "-"]
    assert [drift[5][index] for index in (2, 8, 9, 10)] == ["embedding", "100.0", "0.0", "0.0"]
    assert [drift[6][index] for index in (2, 8, 9, 10)] == ["head", "0.0", "100.0", "0.0"]


def test_a_study_without_theory_has_no_section(fake: Any) -> None:
    assert not set(figures_in("theory")) & set(figures_of(fake.plan))
    page = (fake.study_dir / "report" / "index.html").read_text()
    assert 'id="theory"' not in page
    assert "#theory" not in page


def test_partial_results(fake_theory: Any, tmp_path: Path, drawn_from: Any) -> None:
    """Nothing was measured: everything says so."""
    blocks = list(theory(drawn_from(fake_theory.plan, tmp_path)))
    checks, gradients, _ = map(lines, grids(blocks))
    assert {line[1] for line in checks} == {"Not measured"}
    assert gradients[0][4:] == ["0 of 2", *7 * ["-"]]
    *_, replay, _, remarks = blocks
    assert isinstance(replay, Text) and isinstance(remarks, Items)
    assert "at most - (relative)" in replay.text
    (remark,) = remarks.items
    assert remark.startswith("not measured (")
    assert all(f"<code>{cell}</code>" in remark for cell in fake_theory.plan.cells)
