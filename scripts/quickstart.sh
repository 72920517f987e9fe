#!/usr/bin/env bash
# From a fresh clone to a trained Vision Transformer: installs, trains on handwritten digits for a
# minute or two, and predicts with the result.
#
#   scripts/quickstart.sh [cpu|gpu|tpu]
#
#   WORKDIR        where the run is written; default: runs/digits. Started again, it resumes there.
#   PYTHON, VENV   see scripts/environment.sh
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$root"

device=${1:-cpu}
workdir=${WORKDIR:-runs/digits}

case $device in
  cpu) make_environment ;;
  gpu | tpu) make_environment "$device" ;;
  *) die "Usage: scripts/quickstart.sh [cpu|gpu|tpu], not \"$device\"." ;;
esac

# JAX alone would fall back to the CPU and go on.
"$python" -c "import jax; jax.devices('$device')" ||
  die "JAX cannot use a $device here; the last line above says why. On a GPU, nvidia-smi has to" \
    "list it; scripts/quickstart.sh cpu runs anywhere."
[[ $device == cpu ]] && export JAX_PLATFORMS=cpu

# run COMMAND...: shows a command as one would type it, then runs it.
run() {
  say "\$ ${*/#$root\//}"
  "$@"
}

run "$python" -m vit_jax.train --config configs/vit_digits.py --workdir "$workdir"
run "$python" -m vit_jax predict --checkpoint "$workdir" docs/digits/*.png

say "To work on: source ${VENV#"$root"/}/bin/activate"
