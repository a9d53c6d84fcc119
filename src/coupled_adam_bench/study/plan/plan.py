"""The plan: validated studies and the cells that they make, the one file that every stage is
given."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import read_sealed, seal
from coupled_adam_bench.study.plan.cells import (
    Cell,
    Trunk,
    block_cells,
    data_id,
    find_trunks,
    study_of,
    with_inputs,
)
from coupled_adam_bench.study.plan.labels import check_labels
from coupled_adam_bench.study.plan.preregistration import Stated, check_stated, read_stated
from coupled_adam_bench.study.plan.tuning import (
    PlannedBlock,
    Tuning,
    chosen_values,
    fill_slot,
    tune_block,
)
from coupled_adam_bench.study.settings import (
    Budget,
    Composite,
    StatisticsSettings,
    Study,
    parse_study,
)
from coupled_adam_bench.study.settings.composite import check_together
from coupled_adam_bench.study.settings.errors import for_each, validate
from coupled_adam_bench.study.settings.tune import Values

PLAN_SHA256 = "COUPLED_ADAM_BENCH_PLAN_SHA256"
"""Variable with the seal of the plan that a job is given; without it, any plan that is whole is
taken."""


@dataclass(frozen=True)
class Plan:
    """What makes one results folder: the blocks of one study, or of all studies of a composite one.

    ``data`` is the hash of each study's data by the study's name. Raises ``ValueError`` for studies
    that do not go together.
    """

    name: str
    title: str
    blocks: tuple[PlannedBlock, ...]
    data: dict[str, str]
    stated: Stated | None = None
    """What was stated before the first run."""

    def __post_init__(self) -> None:
        """Check that the studies go together."""
        check_together(self.studies)
        check_labels(self.blocks)
        if self.stated is not None:
            check_stated(self.stated, self.blocks)

    @cached_property
    def studies(self) -> dict[str, Study]:
        """The studies by name, in their order."""
        return {planned.study.name: planned.study for planned in self.blocks}

    @property
    def protocol_label(self) -> str:
        """The protocol of all studies and every setting that departs from it."""
        return next(iter(self.studies.values())).protocol_label

    @property
    def budget(self) -> Budget:
        """The budget of all studies."""
        return next(iter(self.studies.values())).budget

    @property
    def statistics(self) -> StatisticsSettings:
        """The settings of statistics of all studies."""
        return next(iter(self.studies.values())).statistics

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """The cells of all studies by id, each once; one that several studies have belongs to the
        first of them."""
        cells: dict[str, Cell] = {}
        for cell in chain.from_iterable(planned.cells for planned in self.blocks):
            cells.setdefault(cell.id, cell)
        return cells

    @cached_property
    def tunings(self) -> dict[str, Tuning]:
        """The tunings of all studies by id, each once."""
        tunings: dict[str, Tuning] = {}
        for planned in self.blocks:
            tunings |= {
                name: tuning for name, tuning in planned.tunings.items() if name not in tunings
            }
        return tunings

    @cached_property
    def tuning_cells(self) -> dict[str, Cell]:
        """The candidates' cells by id, those left out that the grid has too."""
        candidates = chain.from_iterable(tuning.cells for tuning in self.tunings.values())
        return {cell.id: cell for cell in candidates if cell.id not in self.cells}

    @cached_property
    def trained(self) -> dict[str, Cell]:
        """All cells that are trained, by id: those of the grid, then those that only tune it."""
        return self.cells | self.tuning_cells

    @cached_property
    def by_job_name(self) -> dict[str, Cell]:
        """All cells that are trained, by the names that the workflow has for them."""
        cells = [cell for planned in self.blocks for cell in planned.cells]
        slots = {cell.slot: cell for cell in cells if cell.slot is not None}
        # A choice may be what another block gives: then two jobs have one cell, and `trained` has
        # it once.
        return {
            cell.id: cell for cell in (*cells, *self.trained.values()) if cell.slot is None
        } | slots

    @cached_property
    def trunks(self) -> dict[str, Trunk]:
        """The trunks by id: what cells of schedule ``wsd`` share before their decay.

        Tuned cells are trained as a whole, since it is not known before the choice which trunk is
        theirs.
        """
        given: dict[str, Cell] = {}
        for cell in chain.from_iterable(planned.cells for planned in self.blocks):
            if cell.tuning is None:
                given.setdefault(cell.id, cell)
        return find_trunks({**given, **self.tuning_cells}.values())

    def with_choices(self, choices: Mapping[str, Values]) -> "Plan":
        """Return the plan with the chosen values in the slots of tuned cells; ``choices`` are by
        the tuning's id."""
        if not choices:
            return self
        blocks = []
        for planned in self.blocks:
            cells = []
            for cell in planned.cells:
                if cell.tuning is not None and cell.tuning in choices:
                    cells.append(fill_slot(cell, choices[cell.tuning]))
                else:
                    cells.append(cell)
            blocks.append(replace(planned, cells=tuple(cells)))
        return replace(self, blocks=tuple(blocks))

    @property
    def data_ids(self) -> tuple[str, ...]:
        """The data of all studies, each once."""
        return tuple(dict.fromkeys(self.data_id(study) for study in self.studies.values()))

    def data_id(self, study: Study) -> str:
        """Return the id of a study's data."""
        return data_id(study, self.data[study.name])

    def cells_of(self, study: Study) -> list[Cell]:
        """Return the cells that belong to a study: those that no study before it has."""
        return [cell for cell in self.cells.values() if cell.study is study]

    def find(self, ids: Iterable[str]) -> list[Cell]:
        """Return cells by the names of their jobs.

        ``ValueError`` for an unknown one, for cells of several studies, or for one whose settings
        are not chosen yet.
        """
        ids = list(ids)
        if unknown := [name for name in ids if name not in self.by_job_name]:
            raise ValueError(f"cells: {', '.join(unknown)} not in study {self.name!r}")
        cells = [self.by_job_name[name] for name in ids]
        if waiting := [cell for cell in cells if not cell.is_chosen]:
            raise ValueError(
                f"cells: {waiting[0].id} waits for the choice of {waiting[0].tuning}; make it first"
            )
        study_of(cells)
        return cells

    def study_with_data(self, data: str) -> Study:
        """Return the study that asks most of this data, the longest sequences; ``ValueError`` if
        there is none."""
        studies = [study for study in self.studies.values() if self.data_id(study) == data]
        if not studies:
            raise ValueError(
                f"data: {data!r} is not of study {self.name!r}, which has"
                f" {', '.join(self.data_ids)}"
            )
        return max(studies, key=lambda study: study.training.seq_len)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON value."""
        studies = [
            {"study": study.model_dump(mode="json"), "data": self.data[name]}
            for name, study in self.studies.items()
        ]
        stated = None if self.stated is None else self.stated.model_dump(mode="json")
        return {"name": self.name, "title": self.title, "studies": studies, "stated": stated}


def _plan_blocks(study: Study, data: str) -> list[PlannedBlock]:
    planned = []
    for number, block in enumerate(study.grid):
        cells, tunings = tune_block(study, data, block, block_cells(study, data, block))
        planned.append(PlannedBlock(study, f"grid.{number}", block, tuple(cells), tunings))
    return planned


def _plan(
    name: str, title: str, studies: Sequence[tuple[Study, str]], stated: Stated | None = None
) -> Plan:
    """Return the plan of studies, each with the hash of its data."""
    data: dict[str, str] = {}
    for study, digest in studies:
        if study.name in data:
            raise ValueError(
                f"studies: two of them have the name {study.name!r}; give one of them another"
                " `study`"
            )
        data[study.name] = digest
    blocks = [planned for study, digest in studies for planned in _plan_blocks(study, digest)]
    return Plan(name, title, tuple(blocks), data, stated)


def make_plan(study: Study | Composite, folders: Sequence[Path] = ()) -> Plan:
    """Return the plan of a study; ``folders`` are searched in turn for the studies of a composite
    one.

    The text files and the tokenizer of the data must be in place. Own optimizers have their code in
    the plan.
    """
    parts = study.load_parts(folders) if isinstance(study, Composite) else (study,)
    readings: list[Callable[[], Any]] = [partial(with_inputs, part) for part in parts]
    if study.stated is not None:
        readings.append(partial(read_stated, study.stated))
    found = for_each(lambda read: read(), readings)
    return _plan(
        study.name, study.title, found[: len(parts)], next(iter(found[len(parts) :]), None)
    )


def plan_from_json(values: Any, origin: str) -> Plan:
    """Return the plan of a JSON value from :meth:`Plan.to_json`, whose ``origin`` errors name;
    needs no data."""
    try:
        planned = [(entry["study"], entry["data"]) for entry in values["studies"]]
        name, title, given = values["name"], values["title"], values["stated"]
        stated = None if given is None else validate(Stated, given, origin)
    except (KeyError, TypeError):
        raise ValueError(f"{origin}: not a plan of this version; write it anew") from None
    return _plan(
        name, title, [(parse_study(study, origin), data) for study, data in planned], stated
    )


def read_plan_file(path: Path) -> Plan:
    """Read a sealed plan without the choices of its trials; ``ValueError`` if it was edited, or is
    not this job's."""
    try:
        values = read_sealed(path)
        own = seal(values)
        if os.environ.get(PLAN_SHA256, own) != own:
            raise ValueError(f"{path}: not the plan of the start that this job belongs to")
    except ValueError as error:
        raise ValueError(f"{error}; start again: it is written anew from the study") from None
    return plan_from_json(values, str(path))


def load_plan(path: Path) -> Plan:
    """Read a plan as :func:`read_plan_file`, and the choices of its trials."""
    plan = read_plan_file(path)
    return plan.with_choices(chosen_values(plan.tunings.values(), path.parent / paths.TUNING))
