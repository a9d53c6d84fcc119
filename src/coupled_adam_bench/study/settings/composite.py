"""A study that combines other studies in one results folder."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from coupled_adam_bench.study.settings.base import Line, Settings, UserPath, duplicates
from coupled_adam_bench.study.settings.data import Paths
from coupled_adam_bench.study.settings.errors import for_each, validate
from coupled_adam_bench.study.settings.execution import Budget, Execution, StatisticsSettings
from coupled_adam_bench.study.settings.protocols import Protocol
from coupled_adam_bench.study.settings.reading import read_study_file
from coupled_adam_bench.study.settings.sections import StudyName
from coupled_adam_bench.study.settings.study import Study, parse_study
from embedding_geometry.user_files import is_hidden

_FOR_ALL = {"protocol", "paths", "execution", "budget", "statistics"}


class Composite(Settings):
    """A study that combines others: it has all their cells, and cells that they share only once."""

    study: StudyName
    """Name of this study; its results go to ``results/<study>/``."""
    title: Line = ""
    studies: tuple[StudyName, ...] = Field(min_length=1)
    """Names of study files in the folder of this one, without ``.yaml``."""
    protocol: Protocol | None = None
    """Protocol of all combined studies; by default each keeps its own, and these must be the
    same."""
    paths: Paths = Paths()
    """Paths that replace those of every combined study."""
    execution: Execution = Execution()
    """Execution settings that replace those of every combined study."""
    budget: Budget = Budget()
    """Budget settings that replace those of every combined study."""
    stated: UserPath | None = None
    """A file that states what this study will test; those of the combined studies belong to their
    own folders."""
    statistics: StatisticsSettings = StatisticsSettings()
    """Settings of statistics that replace those of every combined study."""

    @property
    def name(self) -> str:
        """The name of the study."""
        return self.study

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if twice := duplicates(self.studies):
            raise ValueError(f"studies: {', '.join(twice)} given more than once")
        return self

    def load_parts(self, folders: Sequence[Path]) -> tuple[Study, ...]:
        """Read and validate the combined studies, each from the first folder that has its file.

        Raises a ``ValueError`` that lists what is wrong with any of them.
        """
        return tuple(for_each(lambda name: self._load_study(name, folders), self.studies))

    def _load_study(self, name: str, folders: Sequence[Path]) -> Study:
        candidates = [folder / f"{name}.yaml" for folder in folders]
        files = [path for path in candidates if path.is_file()]
        if not files:
            available = sorted(
                {
                    path.stem
                    for folder in folders
                    for path in folder.glob("*.yaml")
                    if not is_hidden(path.name)
                }
                - {self.study}
            )
            raise ValueError(
                f"{self.study}: studies: no {name}.yaml in {' or '.join(map(str, folders))}; "
                f"there are {', '.join(available) or 'none'}"
            )
        values = read_study_file(files[0])
        if isinstance(values, dict):
            if "studies" in values:
                raise ValueError(
                    f"{self.study}: studies: {files[0]} is made of studies itself; name those"
                    " instead"
                )
            # What the composite gives for all wins, field by field, so a part keeps the fields that
            # the composite leaves out.
            for section, given in self.model_dump(
                include=_FOR_ALL, exclude_unset=True, exclude_none=True
            ).items():
                own = values.get(section)
                values[section] = own | given if isinstance(own, dict) else given
        return parse_study(values, f"{self.study}: {files[0]}")


def parse_any_study(values: Any, origin: str = "study") -> Study | Composite:
    """Validate a mapping as a study or, if it has ``studies``, as a composite; see
    :func:`parse_study` for errors."""
    if isinstance(values, dict) and "studies" in values:
        return validate(Composite, values, origin)
    return parse_study(values, origin)


def load_any_study(path: Path) -> Study | Composite:
    """Read and validate the YAML or JSON file of a study or of a composite."""
    return parse_any_study(read_study_file(path), str(path))


def check_together(studies: Mapping[str, Study]) -> None:
    """Raise ``ValueError`` if two studies of a folder differ in what its tables, costs or tests
    have once."""
    given: dict[str, dict[str, Any]] = defaultdict(dict)  # setting -> study -> value
    for name, study in studies.items():
        given["protocol"][name] = study.protocol_label
        for section in ("budget", "statistics"):
            for setting, value in getattr(study, section).model_dump().items():
                given[f"{section}.{setting}"][name] = value
    for setting, values in given.items():
        first, *others = values.values()
        if any(other != first for other in others):
            named = ", ".join(f"{name} has {value!r}" for name, value in values.items())
            section = setting.partition(".")[0]
            raise ValueError(
                f"{setting}: {named}; a results folder has one: set `{section}` next to `studies`"
            )
