#!/usr/bin/env bash
# Everything that is checked before a change is merged: formatting, lint, types, the quick tests.
# On a fresh machine it first makes the environment; see scripts/environment.sh for PYTHON and VENV.
#
#   scripts/test.sh [ARGUMENT OF PYTEST...]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$root"

export JAX_PLATFORMS=cpu # the tests simulate their devices
make_environment test

check_code
run_tests "$@"
