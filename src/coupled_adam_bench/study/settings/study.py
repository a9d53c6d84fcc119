"""The study as a whole."""

from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from coupled_adam_bench.study.settings.errors import validate
from coupled_adam_bench.study.settings.protocols import (
    PROTOCOLS,
    as_yaml,
    departing_settings,
    preset,
    with_defaults,
)
from coupled_adam_bench.study.settings.reading import read_study_file
from coupled_adam_bench.study.settings.sections import Sections
from coupled_adam_bench.study.settings.together import problems


class Study(Sections):
    """A study, which is one YAML file."""

    @property
    def protocol_label(self) -> str:
        """The protocol and each setting that differs from it: ``corrected;
        training.embedding_weight_decay = 0.1``."""
        different = departing_settings(self, self.protocol)
        return "; ".join(
            [self.protocol, *(f"{field} = {as_yaml(value)}" for field, value in different.items())]
        )

    @model_validator(mode="before")
    @classmethod
    def _fill_protocol(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        protocol = values.get("protocol", cls.model_fields["protocol"].default)
        filled = with_defaults(values, preset(protocol)) if protocol in PROTOCOLS else values
        return _without_downstream(filled) if _has_only_contexts(values) else filled

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if found := problems(self):
            raise ValueError("\n".join(found))
        return self


def _has_only_contexts(values: dict[str, Any]) -> bool:
    models = values.get("models")
    return (
        isinstance(models, list | tuple)
        and bool(models)
        and all(
            isinstance(model, dict) and model.get("architecture") == "contexts" for model in models
        )
        and "downstream" not in (values.get("evaluation") or {})
    )


def _without_downstream(values: dict[str, Any]) -> dict[str, Any]:
    return values | {"evaluation": values.get("evaluation", {}) | {"downstream": None}}


def parse_study(values: Any, origin: str = "study") -> Study:
    """Validate a study given as a mapping.

    Raises a ``ValueError`` that lists every wrong field, its value and what is allowed.
    """
    return validate(Study, values, origin)


def load_study(path: Path) -> Study:
    """Read and validate a study's YAML or JSON file."""
    return parse_study(read_study_file(path), str(path))
