"""The plan: validated studies with the identities of data and cells, the one file that every stage is given."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from coupled_adam_bench.cells import Cell, Trunk, block_cells, data_id, expand, find_trunks
from coupled_adam_bench.config import Block, Composite, Evaluation, Study, parse_study
from coupled_adam_bench.files import read_json


@dataclass(frozen=True)
class Part:
    """A study, its data id and its cells by id: all that are trained and evaluated with one set of settings."""

    study: Study
    data_id: str
    cells: dict[str, Cell]

    def block_cells(self, block: Block) -> list[Cell]:
        """Return the cells of one block of the grid."""
        return block_cells(self.study, self.data_id, block)


@dataclass(frozen=True)
class Plan:
    """What makes one results folder: the parts of a composite study, or the one part of any other.

    Raises ``ValueError`` for parts whose results cannot stand in one file.
    """

    name: str
    title: str
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        """Check that the parts go together."""
        _check(self.parts)

    @property
    def protocol_label(self) -> str:
        """The protocol of all parts and every setting that departs from it."""
        return self.parts[0].study.protocol_label

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """The cells of all parts by id, each once, in the order of the parts."""
        cells: dict[str, Cell] = {}
        for part in self.parts:
            cells |= {cell_id: cell for cell_id, cell in part.cells.items() if cell_id not in cells}
        return cells

    @cached_property
    def trunks(self) -> dict[str, Trunk]:
        """The trunks by id: what cells of schedule ``wsd`` share before their decay."""
        return find_trunks(self.cells.values())

    @cached_property
    def _owners(self) -> dict[str, Part]:
        """Cells go with the first part that has them, trunks with the first of their cells."""
        owners = {cell_id: part for part in reversed(self.parts) for cell_id in part.cells}
        return owners | {trunk_id: owners[next(iter(trunk.parts))] for trunk_id, trunk in self.trunks.items()}

    @property
    def data_ids(self) -> tuple[str, ...]:
        """The data of all parts, each once."""
        return tuple(dict.fromkeys(part.data_id for part in self.parts))

    def cells_of(self, part: Part) -> list[str]:
        """Return the ids of the cells that a part trains and evaluates: those that no part before it has."""
        return [cell_id for cell_id in part.cells if self._owners[cell_id] is part]

    def part_of(self, ids: Iterable[str]) -> Part:
        """Return the part that trains and evaluates these cells or trunks; ``ValueError`` if not exactly one does."""
        owners = {item: self._owners.get(item) for item in ids}
        if unknown := [item for item, owner in owners.items() if owner is None]:
            raise ValueError(f"cells: {', '.join(unknown)} not in study {self.name!r}")
        parts = [part for part in self.parts if any(owner is part for owner in owners.values())]
        if len(parts) != 1:
            names = " and ".join(part.study.study for part in parts)
            raise ValueError(f"cells: of {names or 'no study'}; give those of one study at a time")
        return parts[0]

    def part_with_data(self, data: str) -> Part:
        """Return the part that asks most of this data, the longest sequences; ``ValueError`` if there is none."""
        parts = [part for part in self.parts if part.data_id == data]
        if not parts:
            raise ValueError(f"data: {data!r} is not of study {self.name!r}, which has {', '.join(self.data_ids)}")
        return max(parts, key=lambda part: part.study.training.seq_len)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON value; ``cells`` is for readers, :func:`load_plan` derives it anew."""
        return {
            "name": self.name,
            "title": self.title,
            "parts": [{"study": part.study.model_dump(mode="json"), "data_id": part.data_id} for part in self.parts],
            "cells": [cell.to_json() for cell in self.cells.values()],
        }

    def describe(self) -> str:
        """Return a table of the cells and their cost in model FLOPs."""
        lines = [f"{self.name}: {len(self.cells)} cells on {', '.join(self.data_ids)}", ""]
        header = ("cell", "parameters", "tokens", "steps", "FLOPs")
        rows = []
        for cell in self.cells.values():
            rows.append((cell.id, cell.n_params, cell.n_tokens, cell.steps, cell.flops))
        width = max(len(header[0]), *(len(row[0]) for row in rows))
        lines.append(f"{header[0]:<{width}}  {header[1]:>14}  {header[2]:>16}  {header[3]:>8}  {header[4]:>9}")
        lines += [f"{r[0]:<{width}}  {r[1]:>14,}  {r[2]:>16,}  {r[3]:>8,}  {r[4]:>9.2e}" for r in rows]
        n_tokens, flops = sum(row[2] for row in rows), sum(row[4] for row in rows)
        lines += ["", f"together: {n_tokens:,} tokens, {flops:.2e} FLOPs"]
        if trunks := self.trunks.values():
            shared = [part for trunk in trunks for part in trunk.parts.values()]
            n_tokens += sum(trunk.run.n_tokens for trunk in trunks) - sum(part.n_tokens for part in shared)
            flops += sum(trunk.run.flops for trunk in trunks) - sum(part.flops for part in shared)
            lines.append(f"trained: {n_tokens:,} tokens, {flops:.2e} FLOPs, what cells share before their decay once")
        return "\n".join(lines) + "\n"


def _differences(one: Part, other: Part) -> list[str]:
    """Return the settings that change numbers and that two parts do not share, models and optimizers left out."""
    evaluation = [f"evaluation.{name}" for name in Evaluation.model_fields]
    places = [f"paths.{name}" for name in ("word_similarity", "hub_mirror", "tasks")]
    unlike = ["data"] if one.data_id != other.data_id else []
    for name in ("training", *evaluation, *places):
        if attrgetter(name)(one.study) != attrgetter(name)(other.study):
            unlike.append(name)
    return unlike


def _check(parts: Sequence[Part]) -> None:
    """Raise ``ValueError`` if two parts have different protocols, or results that ``results.csv`` cannot tell apart."""
    labels = {part.study.protocol_label: part.study.study for part in parts}
    if len(labels) > 1:
        named = ", ".join(f"{study} has {label!r}" for label, study in labels.items())
        raise ValueError(f"protocol: {named}; a results folder has one: set `protocol` beside `studies`")
    sizes: dict[int, Part] = {}
    runs: dict[tuple[int, str], tuple[Part, Cell]] = {}
    for part in parts:
        for cell in part.cells.values():
            first = sizes.setdefault(cell.n_params, part)
            if not (unlike := _differences(first, part)):
                first, other = runs.setdefault((cell.n_params, cell.optimizer.key), (part, cell))
                model = other.model.model_copy(update={"label": cell.model.label})
                unlike = ["models"] if (model, other.optimizer) != (cell.model, cell.optimizer) else []
            if unlike:
                raise ValueError(
                    f"{first.study.study} and {part.study.study} both have cells of {cell.n_params:,} parameters, but "
                    f"differ in {', '.join(unlike)}; results are told apart by n_params, n_tokens, optimizer and seed "
                    "alone: make these the same, or run them as two studies"
                )


def make_part(study: Study) -> Part:
    """Return a study with its data id and cells; the text files and the tokenizer of its data must be in place."""
    data = data_id(study)
    return Part(study, data, expand(study, data))


def make_plan(study: Study | Composite, folders: Sequence[Path] = ()) -> Plan:
    """Return the plan of a study; ``folders`` are searched in turn for the parts of a composite one."""
    studies = study.load_parts(folders) if isinstance(study, Composite) else (study,)
    return Plan(study.study, study.title, tuple(make_part(part) for part in studies))


def load_plan(path: Path) -> Plan:
    """Read a plan written from :meth:`Plan.to_json`; needs none of the study's data."""
    values = read_json(path)
    if "parts" not in values:
        raise ValueError(f"{path}: not a plan of this version; write it anew")
    parts = []
    for part in values["parts"]:
        study = parse_study(part["study"], str(path))
        parts.append(Part(study, part["data_id"], expand(study, part["data_id"])))
    return Plan(values["name"], values["title"], tuple(parts))
