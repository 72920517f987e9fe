#!/usr/bin/env bash
# The quick tests with the lower bounds of setup.py on Python 3.11, or the one that PYTHON names. Makes
# the environment anew, in .venv-oldest or VENV.
#
#   scripts/test_oldest.sh [ARGUMENT OF PYTEST...]
set -euo pipefail
VENV=${VENV:-$(dirname "${BASH_SOURCE[0]}")/../.venv-oldest}
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$root"
PYTHON=${PYTHON:-$(find_python 3.11)}

# What setup.py names, as old as it allows; what that needs in turn, as new as that allows.
find_oldest() {
  constraints=$VENV/oldest.txt
  "$python" -m pip install --quiet uv
  UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-}} "$VENV/bin/uv" pip compile --quiet \
    --resolution lowest-direct --python "$python" --extra test --extra hub --extra maps \
    --output-file "$constraints" setup.py
}

export JAX_PLATFORMS=cpu # the tests simulate their devices
make_fresh_environment test,hub,maps find_oldest
run_tests "$@"
