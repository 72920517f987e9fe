#!/usr/bin/env bash
# The tests of preparing data, with Apache Beam, whose bounds differ from constraints.txt. Makes the
# environment anew, in .venv-beam or VENV.
#
#   scripts/test_beam.sh [ARGUMENT OF PYTEST...]
set -euo pipefail
VENV=${VENV:-$(dirname "${BASH_SOURCE[0]}")/../.venv-beam}
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$root"

export JAX_PLATFORMS=cpu # the tests simulate their devices
make_fresh_environment test,beam
"$python" -m pip install --quiet 'apache-beam[dask]' # one of its runners for clusters
run_tests "$@" tests/tools/prepare
