"""What the stated hypotheses of a plan are measured with."""

from coupled_adam_bench.records.stored import settings_of
from coupled_adam_bench.store.files import digest
from coupled_adam_bench.study.catalogue.stages import STAGES
from coupled_adam_bench.study.plan import Plan

_PRINT = {"symbol", "digits", "unit", "description"}
"""The settings of a study's own metric that change no number."""


def stated_measures(plan: Plan) -> dict[str, str]:
    """Return by study and metric a hash of all but the model that can change what hypotheses are
    about.

    That is what the stage of the metric is given and, of a study's own metric, which direction of
    it is better.
    """
    assert plan.stated is not None
    found = {}
    for planned in plan.blocks:
        study = planned.study
        own = {
            metric.name: metric.model_dump(exclude=_PRINT) for metric in study.evaluation.metrics
        }
        for hypothesis in plan.stated.plan.hypotheses:
            if hypothesis.table == planned.block.table:
                name = hypothesis.metric
                settings = settings_of(
                    STAGES[study.metrics[name].stage], study, plan.data_id(study)
                )
                found[f"{study.name} {name}"] = digest([settings, own.get(name)])
    return found
