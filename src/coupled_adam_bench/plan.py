"""The plan: a validated study with the identity of its data and its cells, the one file that every stage is given."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coupled_adam_bench.cells import Cell, Trunk, block_cells, data_id, expand, find_trunks
from coupled_adam_bench.config import Block, Study, parse_study
from coupled_adam_bench.files import read_json


@dataclass(frozen=True)
class Plan:
    """A study, its data id and its cells by id."""

    study: Study
    data_id: str
    cells: dict[str, Cell]

    def block_cells(self, block: Block) -> list[Cell]:
        """Return the cells of one block of the grid."""
        return block_cells(self.study, self.data_id, block)

    @property
    def trunks(self) -> dict[str, Trunk]:
        """The trunks by id: what cells of schedule ``wsd`` share before their decay."""
        return find_trunks(self.cells.values())

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON value; ``cells`` is for readers, :func:`load_plan` derives it anew."""
        return {
            "study": self.study.model_dump(mode="json"),
            "data_id": self.data_id,
            "cells": [cell.to_json() for cell in self.cells.values()],
        }

    def describe(self) -> str:
        """Return a table of the cells and their cost in model FLOPs."""
        lines = [f"{self.study.study}: {len(self.cells)} cells on {self.data_id}", ""]
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


def make_plan(study: Study) -> Plan:
    """Return the plan of a study; the text files and the tokenizer of its data must be in place."""
    data = data_id(study)
    return Plan(study, data, expand(study, data))


def load_plan(path: Path) -> Plan:
    """Read a plan written from :meth:`Plan.to_json`; needs none of the study's data."""
    values = read_json(path)
    study = parse_study(values["study"], str(path))
    return Plan(study, values["data_id"], expand(study, values["data_id"]))
