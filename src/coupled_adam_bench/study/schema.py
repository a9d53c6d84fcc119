"""The JSON schema of a study, by which editors complete and check a YAML file."""

import json

from coupled_adam_bench.study.study import Study


def study_schema() -> str:
    """Return the schema as JSON; descriptions are the docstrings of the fields."""
    return json.dumps(Study.model_json_schema(), indent=1, ensure_ascii=False)


if __name__ == "__main__":
    print(study_schema())
