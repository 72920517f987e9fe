#!/usr/bin/env bash
# The quick tests with the newest versions that the package index gives, without constraints.txt: what
# `pip install vit-jax-pretraining` gets today. Makes the environment anew, in .venv-newest or VENV.
#
#   scripts/test_newest.sh [ARGUMENT OF PYTEST...]
set -euo pipefail
VENV=${VENV:-$(dirname "${BASH_SOURCE[0]}")/../.venv-newest}
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$root"

export JAX_PLATFORMS=cpu # the tests simulate their devices
make_fresh_environment test,hub,maps
run_tests "$@"
