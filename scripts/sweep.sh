#!/usr/bin/env bash
# Trains a grid of configs: values that commas separate are its axes (docs/sweeps.md).
#
#   scripts/sweep.sh --workdir=runs/lr --slots=2 -- --config configs/vit_digits.py \
#     --config.optim.lr=1e-3,3e-3 --config.seed=0,1,2
#
# The same command again goes on, and at the end shows the results. --help explains the flags.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

[[ -x $python ]] || python=${PYTHON:-python}
"$python" -c "import vit_jax.config" 2>/dev/null || die "$python has no vit_jax. Install it" \
  "(scripts/quickstart.sh makes $VENV), or name an interpreter that has: PYTHON=/path/to/python."
exec "$python" -m vit_jax sweep "$@"
