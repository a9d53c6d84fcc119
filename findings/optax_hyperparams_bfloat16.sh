#!/usr/bin/env bash
# optax.inject_hyperparams(optax.adamw) rounds betas to the dtype of the parameters: in bfloat16
# 0.999 becomes 1, and the first step gives NaN, which adamw itself does not.
#
# Versions: optax 0.2.8, jax 0.10.2. Seen on 2026-11-27 with Python 3.11 on Linux, x86-64,
# without a GPU.
# Guess: the wrapper only makes hyperparameters visible, so the steps are those of adamw. Sure:
# 65 %.
# Who meets it: who trains in bfloat16 and logs or schedules the learning rate by
# inject_hyperparams.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet optax==0.2.8 jax==0.10.2
cd "$folder"
JAX_PLATFORMS=cpu venv/bin/python - <<'END'
import sys

import jax.numpy as jnp
import optax


def after_a_step(optimizer: optax.GradientTransformation) -> tuple[str, optax.OptState]:
    """Return the parameters after one step with gradients of 1, and the state."""
    params = jnp.ones(2, jnp.bfloat16)
    updates, state = optimizer.update(jnp.ones(2, jnp.bfloat16), optimizer.init(params), params)
    finite = bool(jnp.isfinite(optax.apply_updates(params, updates)).all())
    return "finite" if finite else "not finite", state


plain, _ = after_a_step(optax.adamw(0.01))
injected, state = after_a_step(optax.inject_hyperparams(optax.adamw)(0.01))
seen = {"adamw": plain, "injected": injected, "b2": float(state.hyperparams["b2"])}
expected = {"adamw": "finite", "injected": "not finite", "b2": 1.0}
print(seen)
sys.exit(seen != expected)
END
