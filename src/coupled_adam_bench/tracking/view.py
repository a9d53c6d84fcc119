"""What MLflow shows of a study when its address is opened: the loss curves of its optimizers.

MLflow 3 keeps a view that somebody shares as a tag of the experiment, whose name is in the address
(``viewStateShareKey``). Its own first view has the metrics in the order of the alphabet, and a bar
for each that is one number. The keys here are those of its pages (the bundle of MLflow 3.17);
another MLflow that does not know one shows its own view.
"""

import json
import socket
from typing import Any

from coupled_adam_bench.store import paths
from coupled_adam_bench.study.catalogue.metrics import METRICS
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.tracking.described import WITHOUT_SEED, losses_by_size
from coupled_adam_bench.tracking.place import is_database, is_own, masked

_NAME = "curves"
_LISTED = {"loss": 90, "isotropy": 165, "r_bar": 180}
"""The metrics that the list of runs has as columns, with the pixels that their names take: the 100
of MLflow cut two of them."""
_PORT = 5000
"""The port that ``mlflow ui`` takes by default."""
VIEW = f"mlflow.sharedViewState.{_NAME}"
"""The tag of an experiment with the view."""
KIND = {"mlflow.experimentKind": "custom_model_development"}
"""The tag by which MLflow opens an experiment on its runs, and not on pages for language models."""


def _section(size: str) -> dict[str, Any]:
    return {
        "uuid": f"{_NAME}-{size}",
        "name": f"{size}: means over seeds",
        "display": True,
        "isReordered": True,
        "deleted": False,
        "isGenerated": False,
        # MLflow's three abreast are too narrow beside the assistant.
        "columns": 2,
        "cardHeight": 360,
    }


def _curve(size: str, metric: str) -> dict[str, Any]:
    return {
        "uuid": f"{_NAME}-{metric}",
        "type": "LINE",
        "metricSectionId": f"{_NAME}-{size}",
        "isGenerated": False,
        "deleted": False,
        "runsCountToCompare": 10,
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "displayName": metric,
        "xAxisKey": "step",
        # The bands of seeds are filled down to zero, which a linear axis then shows.
        "scaleType": "log",
        "useGlobalXaxisKey": True,
        "lineSmoothness": 0,
        "useGlobalLineSmoothing": True,
        "range": {"xMin": None, "xMax": None, "yMin": None, "yMax": None},
    }


def curves(plan: Plan) -> str:
    """Return the value of that tag: the losses of each size of model, each a mean over seeds."""
    losses = losses_by_size(plan)
    columns = {f"metrics.`{METRICS[name].task}/{name}`": width for name, width in _LISTED.items()}
    sections = [_section(size) for size in losses]
    charts: list[dict[str, Any]] = []
    for size, names in losses.items():
        charts += [_curve(size, name) for name in names]
    view = {
        "compareRunCharts": charts,
        "compareRunSections": sections,
        # The charts have the whole width, and an arrow at their left brings the list.
        "runListHidden": True,
        # Otherwise the charts have ten of the optimizers.
        "runsHiddenMode": "SHOW_ALL",
        "isAccordionReordered": True,
        "groupBy": f"tag.average.{WITHOUT_SEED}",
        "selectedColumns": list(columns),
        "columnOrder": list(columns),
        "columnWidths": columns,
    }
    return json.dumps(view)


def shown_at(uri: str, experiment_id: str) -> list[str]:
    """Return what to type and the address that then shows the curves; of a server, the address."""
    page = (
        f"#/experiments/{experiment_id}/runs?workflowType=machine_learning"
        f"&compareRunsMode=CHART&viewStateShareKey={_NAME}"
    )
    if not is_database(uri):
        return [f"{masked(uri, uri).rstrip('/')}/{page}"]
    place = f"sqlite:///{paths.MLFLOW_DB}" if is_own(uri) else masked(uri, uri)
    port = _free_port()
    option = "" if port == _PORT else f" --port {port}"
    return [
        f"mlflow ui --backend-store-uri {place}{option}",
        f"http://127.0.0.1:{port}/{page}",
    ]


def _free_port() -> int:
    """Return the first port from MLflow's own on that no other program here listens at."""
    for port in range(_PORT, _PORT + 50):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    return _PORT
