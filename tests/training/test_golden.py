"""Loss curves on file, which the old house trained: no refactoring may move them."""

from typing import Any

import numpy as np
import pytest
from nano import golden_losses, losses, train

OPTIMIZERS: dict[str, Any] = {
    "adamw": "adamw",
    "coupled_adam": "coupled_adam",
    "coupled_adam_n-2": {"name": "coupled_adam", "scale_exponent": -2},
    "sgd_f20": {"name": "sgd", "lr_factor": 20},
}
MODELS = {"gpt2": {}, "stablelm-untied": {"architecture": "stablelm", "tied": False}}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.usefixtures("nano")
def test_the_losses_are_those_on_file(model: str) -> None:
    cells = train([*OPTIMIZERS.values()], model={"n_layer": 2} | MODELS[model])
    found = [list(losses(cell).values()) for cell in cells]
    golden = golden_losses()
    # Other processors round otherwise; a seed moves the curve by a hundred times as much.
    np.testing.assert_allclose(found, [golden[f"{model} {key}"] for key in OPTIMIZERS], rtol=1e-4)
