"""A study made of other studies: their cells in one results folder."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from coupled_adam_bench.config.base import Settings
from coupled_adam_bench.config.data import Paths
from coupled_adam_bench.config.errors import validate
from coupled_adam_bench.config.execution import Execution
from coupled_adam_bench.config.protocols import Protocol
from coupled_adam_bench.config.study import (
    STUDY_PATTERN,
    Study,
    StudyName,
    parse_study,
    read_study_file,
)

_FOR_ALL = {"protocol", "paths", "execution"}


class Composite(Settings):
    """A study made of others: their cells in one results folder, those that they share once."""

    study: StudyName
    """Its name; results go to ``results/<study>/``."""
    title: str = ""
    studies: tuple[Annotated[str, Field(pattern=STUDY_PATTERN)], ...] = Field(min_length=1)
    """Names of study files beside this one, without ``.yaml``."""
    protocol: Protocol | None = None
    """Of all parts; without it each has its own, and they must be the same."""
    paths: Paths = Paths()
    """Those given here hold for all parts."""
    execution: Execution = Execution()
    """Those given here hold for all parts."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if twice := [name for name, count in Counter(self.studies).items() if count > 1]:
            raise ValueError(f"studies: {', '.join(twice)} given more than once")
        return self

    def load_parts(self, folders: Sequence[Path]) -> tuple[Study, ...]:
        """Read and validate the parts, each from the first folder that has it, with the settings given here.

        Raises ``ValueError`` that lists what is wrong with all of them.
        """
        parts, problems = [], []
        for name in self.studies:
            try:
                parts.append(self._load_part(name, folders))
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise ValueError("\n".join(problems))
        return tuple(parts)

    def _load_part(self, name: str, folders: Sequence[Path]) -> Study:
        found = [path for folder in folders if (path := folder / f"{name}.yaml").is_file()]
        if not found:
            there = sorted({path.stem for folder in folders for path in folder.glob("*.yaml")} - {self.study})
            raise ValueError(
                f"{self.study}: studies: no {name}.yaml in {' or '.join(map(str, folders))}; "
                f"there are {', '.join(there) or 'none'}"
            )
        values = read_study_file(found[0])
        if isinstance(values, dict):
            if "studies" in values:
                raise ValueError(f"{self.study}: studies: {found[0]} is made of studies itself; name those instead")
            for section, given in self.model_dump(include=_FOR_ALL, exclude_unset=True, exclude_none=True).items():
                own = values.get(section)
                values[section] = own | given if isinstance(own, dict) else given
        return parse_study(values, f"{self.study}: {found[0]}")


def parse_any_study(values: Any, origin: str = "study") -> Study | Composite:
    """Validate a study, or one made of ``studies``, given as a mapping; errors as in :func:`parse_study`."""
    if isinstance(values, dict) and "studies" in values:
        return validate(Composite, values, origin)
    return parse_study(values, origin)


def load_any_study(path: Path) -> Study | Composite:
    """Read and validate the YAML or JSON file of a study, or of one made of studies."""
    return parse_any_study(read_study_file(path), str(path))
