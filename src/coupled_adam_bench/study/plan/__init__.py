"""The plan: what a study expands to, its cells with their ids, trunks and tunings, in the one file
that every stage is given."""

from coupled_adam_bench.study.plan.cells import study_of
from coupled_adam_bench.study.plan.plan import (
    PLAN_SHA256,
    Plan,
    load_plan,
    make_plan,
    plan_from_json,
    read_plan_file,
)

__all__ = [
    "PLAN_SHA256",
    "Plan",
    "load_plan",
    "make_plan",
    "plan_from_json",
    "read_plan_file",
    "study_of",
]
