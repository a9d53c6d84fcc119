"""Plug-ins: what a study may say of them, what their classes must have, and that they move no
cell."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coupled_adam_bench.report.contents import sections, statistics_of
from coupled_adam_bench.report.figures import FIGURES, figure_names, figures_of
from coupled_adam_bench.report.plug_ins import draw_own, own_figures
from coupled_adam_bench.statistics.plug_ins import own_statistics
from coupled_adam_bench.study.catalogue.contents import STATISTICS
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.plan.dotted import code_of
from coupled_adam_bench.study.plan.plug_ins import check_names, code_of_report, entries
from coupled_adam_bench.study.settings import Training, parse_study

Settings = Callable[..., dict[str, Any]]

CODE = """
from coupled_adam_bench.report.plug_ins import FigurePlugIn
from coupled_adam_bench.statistics.plug_ins import StatisticPlugIn

class Fine(StatisticPlugIn):
    contract, title, columns, key = 1, "Fine", {"a": int}, ("a",)
    def __init__(self, least=0): self.least = least
    def rows(self, material): yield {"a": self.least}
    def blocks(self, material, statistic): return ()

class Bare(StatisticPlugIn):
    contract, title, columns = 1, "Bare", {"a": int}
    def rows(self, material): return ()

class Old(Fine):
    contract = 0

class Picky(Fine):
    def __init__(self, least): raise RuntimeError("no")

class Misspelled(Fine):
    key = ("aa",)

class Short(Fine):
    def rows(self, material): yield {}

class Long(Fine):
    def rows(self, material): yield {"a": 1, "b": 2}

class Words(Fine):
    def rows(self, material): yield {"a": "many"}

class Breaks(Fine):
    def check(self, plan): {}["plan"]
    def rows(self, material): yield {}["row"]
    def blocks(self, material, statistic): yield [][3]

class Says(Fine):
    def blocks(self, material, statistic): yield "text"

class Stops(Breaks):
    def check(self, plan): pass

class Drawn(FigurePlugIn):
    contract, caption = 1, "A figure."
    def draw(self, material): return None

class Plain:
    pass
"""


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the plug-ins, whose module no other test has."""
    file = tmp_path / f"plug_ins_{tmp_path.parent.name}_{tmp_path.name}.py".replace("-", "_")
    file.write_text(CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return file


def plan_of(tiny_study: Settings, code: Path, kind: str = "files", **entry: Any) -> Plan:
    path = f"{code.stem}.{entry.pop('path', 'Fine')}"
    return make_plan(
        parse_study(tiny_study(statistics={kind: [{"name": "mine", "path": path} | entry]}))
    )


def test_a_study_has_what_it_brings(tiny_study, code):
    plan = plan_of(tiny_study, code, arguments={"least": 7})
    (statistic,) = own_statistics(plan)
    assert (statistic.file, list(statistic.rows(None))) == ("mine.csv", [{"a": 7}])  # type: ignore[arg-type]
    ids = [section.id for section in sections(plan)]
    assert ids.index("plug-in-mine") + 1 == ids.index("setup")
    assert statistic.file not in {each.file for each in statistics_of(plan)}
    plan = plan_of(tiny_study, code, "figures", path="Drawn")
    assert figure_names(plan)[-1] == "mine"
    assert figures_of(plan)["mine"] == "A figure."


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"path": "Fin"}, r"statistics\.files\.0\.path: .* has no 'Fin'; did you mean 'Fine'\?"),
        (
            {"path": "Plain"},
            r"Plain is no subclass of StatisticPlugIn; derive it from coupled_adam",
        ),
        ({"path": "Bare"}, r"Bare lacks `key`, the method `blocks`; the class must have"),
        ({"path": "Misspelled"}, r"\.path: `key` of .*Misspelled names 'aa', which is not among"),
        ({"path": "Breaks"}, r"files\.0\.path: check\(\) of .*Breaks fails \(KeyError: 'plan'\)"),
        ({"path": "Old"}, r"Old is written for contract 0, and this program has 1; read docs"),
        (
            {"path": "Picky", "arguments": {"least": 1}},
            r"arguments: .* refuses them \(RuntimeError",
        ),
        (
            {"arguments": {"most": 1}},
            r"arguments: got an unexpected keyword argument 'most'; .* takes",
        ),
    ],
)
def test_a_class_that_breaks_the_contract_is_refused(tiny_study, code, entry, said):
    with pytest.raises(ValueError, match=said):
        own_statistics(plan_of(tiny_study, code, **entry))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("Short", r"rows\(\) of .*Short yields a row that lacks 'a'; `columns` are a$"),
        ("Long", r"rows\(\) of .*Long yields a row that has 'b', too; `columns` are a$"),
        ("Words", r"Words yields a row whose 'a' is no int \(ValueError: invalid literal"),
        ("Stops", r"files\.0\.path: rows\(\) of .*Stops fails \(KeyError: 'row'\) at line 35 of"),
    ],
)
def test_rows_that_break_the_contract_are_refused(tiny_study, code, kind, said):
    (statistic,) = own_statistics(plan_of(tiny_study, code, path=kind))
    with pytest.raises(ValueError, match=said):
        list(statistic.rows(None))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("Stops", r"files\.0\.path: blocks\(\) of .*Stops fails \(IndexErr"),
        ("Says", r"blocks\(\) of .*Says yields str, which is no block of .* text as `Text"),
    ],
)
def test_blocks_that_break_the_contract_are_refused(tiny_study, code, kind, said):
    (statistic,) = own_statistics(plan_of(tiny_study, code, path=kind))
    assert statistic.section is not None
    with pytest.raises(ValueError, match=said):
        list(statistic.section.blocks(None))


def test_a_figure_that_is_none_is_refused(tiny_study, code):
    plan = plan_of(tiny_study, code, "figures", path="Drawn")
    material = SimpleNamespace(plan=plan)
    said = (
        r"statistics\.figures\.0\.path: draw\(\) of .*Drawn must return a Figure .*, not NoneType"
    )
    with pytest.raises(ValueError, match=said):
        draw_own("mine", own_figures(plan)["mine"], material)


def test_a_figure_that_breaks_the_contract_is_refused(tiny_study, code):
    with pytest.raises(ValueError, match=r"figures\.0\.path: .* no subclass of FigurePlugIn"):
        own_figures(plan_of(tiny_study, code, "figures", path="Fine"))


@pytest.mark.parametrize(("kind", "taken"), [("files", "tests"), ("figures", "training")])
def test_a_name_that_is_taken_is_refused(tiny_study, code, kind, taken):
    files = [each.file for each in STATISTICS]
    with pytest.raises(ValueError, match=rf"statistics\.{kind}\.0\.name: '{taken}' is made by"):
        check_names(plan_of(tiny_study, code, kind, name=taken), files, FIGURES)
    check_names(plan_of(tiny_study, code, kind), files, FIGURES)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (
            [{"name": "a", "path": "m.A"}, {"name": "a", "path": "m.B"}],
            r"(files|figures|measurements): 'a' is the name of several plug-ins",
        ),
        ([{"name": "a/b", "path": "m.A"}], "small letters"),
        ([{"name": "a", "path": "A"}], "a module and what it defines, joined by dots"),
        ([{"name": "a", "path": "m.A", "arguments": {"x": "1e-8"}}], "write 1.0e-8"),
    ],
)
def test_a_wrong_entry_is_refused(tiny_study, entries, said):
    for given in ({"statistics": {"files": entries}}, {"statistics": {"figures": entries}}):
        with pytest.raises(ValueError, match=said):
            parse_study(tiny_study(**given))
    with pytest.raises(ValueError, match=said):
        parse_study(tiny_study(execution={"measurements": entries}))


def test_a_path_without_its_key_is_told_the_form(tiny_study):
    training = tiny_study()["training"] | {"init": "my_parts.Orthogonal"}
    said = (
        r"init: must be 'normal', or a class of your own, written as \{path: my_parts\.Orthogonal\}"
    )
    with pytest.raises(ValueError, match=said):
        parse_study(tiny_study(training=training))


def test_changed_code_is_another_report(tiny_study, code):
    plan = plan_of(tiny_study, code)
    before = code_of_report(plan)
    assert list(before) == [f"{code.stem}.Fine"]
    code.write_text(CODE + "\n", encoding="utf-8")
    assert code_of_report(plan) != before
    code.unlink()
    with pytest.raises(ValueError, match=r"statistics\.files\.0\.path: no package or module"):
        code_of_report(plan)


def test_a_measurement_without_its_module_is_refused(tiny_study):
    execution = tiny_study()["execution"] | {"measurements": [{"name": "a", "path": "lost.A"}]}
    plan = make_plan(parse_study(tiny_study(execution=execution)))
    with pytest.raises(ValueError, match=r"execution\.measurements\.0\.path: no package"):
        code_of_report(plan)


def test_plug_ins_move_no_cell_and_their_absence_no_record(tiny_study, tiny_plan):
    entry = [{"name": "a", "path": "m.A"}]
    execution = tiny_study()["execution"] | {"measurements": entry}
    study = parse_study(
        tiny_study(execution=execution, statistics={"files": entry, "figures": entry})
    )
    assert list(make_plan(study).cells) == list(tiny_plan.cells)
    dumped = study.model_dump(mode="json")
    assert dumped["execution"]["measurements"] == [entry[0] | {"arguments": {}}]
    (plain,) = (each.model_dump(mode="json") for each in tiny_plan.studies.values())
    assert "measurements" not in plain["execution"]
    assert not {"files", "figures"} & plain["statistics"].keys()
    assert code_of_report(tiny_plan) == {}


def test_a_plug_in_may_refuse_a_plan(tiny_study, code):
    more = '\n\nclass Fussy(Fine):\n    def check(self, plan): raise ValueError("too few seeds")\n'
    code.write_text(CODE + more, encoding="utf-8")
    with pytest.raises(ValueError, match=r"statistics\.files\.0: .*Fussy: too few seeds"):
        own_statistics(plan_of(tiny_study, code, path="Fussy"))


def test_settings_with_a_class_of_one_s_own_can_be_a_key():
    entry = {"path": "m.A", "arguments": {"x": [1, 2]}}
    first, same = (Training.model_validate({"init": entry}) for _ in range(2))
    other = Training.model_validate({"init": entry | {"arguments": {}}})
    assert len({first, same, other}) == 2


def test_a_plan_has_the_code_of_what_moves_a_number_of_a_run(tiny_study, code):
    path = f"{code.stem}.Fine"
    execution = tiny_study()["execution"] | {"measurements": [{"name": "a", "path": path}]}
    training = tiny_study()["training"] | {"init": {"path": path}}
    statistics = {"files": [{"name": "a", "path": path}]}
    plan = make_plan(
        parse_study(tiny_study(execution=execution, training=training, statistics=statistics))
    )
    found = {place: entry.code for place, entry in entries(plan)}
    assert found["training.init"] == found["execution.measurements.0"] == code_of(path)
    assert found["statistics.files.0"] is None  # the report is made anew by `code_of_report`
    assert list(code_of_report(plan)) == [path]
    code.unlink()
    with pytest.raises(ValueError, match=r"training\.init\.path: no package or module"):
        code_of_report(plan)
