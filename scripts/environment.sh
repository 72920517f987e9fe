# shellcheck shell=bash
# Sourced by the other scripts: finds a Python, makes the virtual environment, installs into it.
#
#   PYTHON   the interpreter to make the environment with; default: the newest that is new enough
#   VENV     where the environment is; default: .venv in the repository
#
# Defines `root` (the repository), `python` (the environment's), `constraints` (the file with the
# versions to install), `make_environment`, `make_fresh_environment`, `add_parity`, `check_code`,
# `run_tests`.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${VENV:-$root/.venv}
[[ $VENV == /* ]] || VENV=$PWD/$VENV
python=$VENV/bin/python
constraints=$root/constraints.txt

# On a CPU, the memory of a step comes in pages of 2 MiB instead of 4 KiB (docs/install.md).
export GLIBC_TUNABLES=${GLIBC_TUNABLES-glibc.malloc.hugetlb=1}

# Python compiles what it imports; pip would compile all of the 2.5 GB, for 38 s of CPU time.
export PIP_NO_COMPILE=1

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

die() {
  printf '%s\n' "$@" >&2
  exit 1
}

# TensorFlow, which reads the data, has wheels for these versions alone.
VERSIONS=(3.13 3.12 3.11)

# supported PYTHON [VERSION...]: whether it runs, is of one of these versions and has the usual ABI.
supported() {
  "$1" -c 'import sys, sysconfig
version = "%d.%d" % sys.version_info[:2]
sys.exit(version not in sys.argv[1:] or bool(sysconfig.get_config_var("Py_GIL_DISABLED")))' \
    "${@:2}" 2>/dev/null
}

# installed_by_managers VERSION: what pyenv and uv have installed of it, which need not be on the
# PATH; the newest patch first.
installed_by_managers() {
  local folders=("${PYENV_ROOT:-$HOME/.pyenv}/versions/$1"
    "${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-$HOME/.local/share}/uv/python}/cpython-$1") folder
  for folder in "${folders[@]}"; do
    compgen -G "$folder.*/bin/python$1" | sort -rV || true
  done
}

# candidates VERSION...: interpreters to try, in this order. Some names do not run, such as pyenv's.
candidates() {
  local version
  if [[ -n ${PYTHON:-} ]]; then
    echo "$PYTHON"
    return
  fi
  for version in "$@"; do
    echo "python$version"
    installed_by_managers "$version"
  done
  printf '%s\n' python3 python
}

# find_python [VERSION...]: prints the interpreter to use, of the first of these versions that is here.
find_python() {
  local candidate wanted=${*:-3.11, 3.12 or 3.13}
  (($#)) || set -- "${VERSIONS[@]}"
  while IFS= read -r candidate; do
    if supported "$candidate" "$@"; then
      echo "$candidate"
      return
    fi
  done < <(candidates "$@")
  die "vit_jax needs Python $wanted; ${PYTHON:-python3} here is:" \
    "  $("${PYTHON:-python3}" --version 2>&1 | head -n 1)" \
    "Get one in any of these ways, then start this script again:" \
    "  Debian, Ubuntu   sudo apt install python3 python3-venv   (Debian 12, Ubuntu 24.04 or later)" \
    "  macOS            brew install python@$1" \
    "  Linux, macOS     curl -LsSf https://astral.sh/uv/install.sh | sh && uv python install $1" \
    "  any system       https://www.python.org/downloads/" \
    "An interpreter that is elsewhere is named by PYTHON=/path/to/python$1."
}

make_venv() {
  local base
  base=$(find_python)
  "$base" -c 'import ensurepip, venv' 2>/dev/null || die \
    "$base cannot make virtual environments: its module venv or ensurepip is missing." \
    "On Debian and Ubuntu: sudo apt install python3-venv"
  say "Making a virtual environment in $VENV with $("$base" --version)"
  "$base" -m venv "$VENV"
}

stamp_of_requirements() { (cd "$root" && cat setup.py pyproject.toml constraints.txt | cksum); }

# make_environment [EXTRA]: installs the package from this clone, editable, with some of its extras.
# A second call with nothing changed returns at once.
make_environment() {
  local extra=${1:-} stamp installed quiet=()
  installed=$VENV/installed${extra:+-$extra}
  "$python" -m pip --version &>/dev/null || make_venv
  supported "$python" "${VERSIONS[@]}" || die "$VENV has $("$python" --version), but vit_jax needs 3.11 to 3.13." \
    "Delete that folder, or choose another with VENV=/path/to/folder."
  stamp=$(stamp_of_requirements)
  [[ $(cat "$installed" 2>/dev/null) == "$stamp" ]] && return
  say "Installing vit_jax${extra:+ with extra \"$extra\"} (some minutes, about 2.5 GB on disk; once)"
  [[ -t 1 ]] || quiet=(-qq) # errors alone; a person at a terminal sees what pip is doing
  "$python" -m pip install --disable-pip-version-check ${quiet[@]+"${quiet[@]}"} \
    --constraint "$constraints" --editable "$root${extra:+[$extra]}"
  echo "$stamp" >"$installed"
}

# make_fresh_environment EXTRA [COMMAND]: installs what the index has today, whatever was there before.
# COMMAND, run in between with the environment's pip, may say in `constraints` what is wanted.
make_fresh_environment() {
  [[ ! -e $VENV || -e $VENV/pyvenv.cfg ]] || die "$VENV is not a virtual environment." \
    "It would be deleted; choose another folder with VENV=/path/to/folder."
  rm -rf "$VENV"
  constraints=/dev/null
  make_venv
  "$python" -m pip install --quiet --upgrade pip
  [[ -z ${2:-} ]] || "$2"
  make_environment "$1"
  say "What was installed"
  "$python" --version
  "$python" -m pip freeze --exclude-editable
}

check_code() {
  say "Formatting, lint and types"
  "$python" -m ruff format --check . && "$python" -m ruff check . && "$python" -m mypy
}

# run_tests [ARGUMENT OF PYTEST...]: in two processes.
# Files stay together: their tests share what a fixture has made. tests/conftest.py orders them.
run_tests() {
  say "Tests"
  "$python" -m pytest -n 2 --dist=loadfile --no-loadscope-reorder "$@"
}

# add_parity: installs what weights of other projects and scores are compared with, into the environment
# that is there; false if it cannot be had. PyTorch comes without CUDA, and timm without torchvision,
# which it needs for images alone.
add_parity() {
  local stamp torch install installed=$VENV/installed-parity
  stamp=$(stamp_of_requirements)
  [[ $(cat "$installed" 2>/dev/null) == "$stamp" ]] && return
  say "Installing PyTorch for CPUs, transformers, timm and scikit-learn (about 1 GB on disk; once)"
  torch=$(sed -n 's/^torch==//p' "$root/constraints.txt")
  install=("$python" -m pip install --quiet --retries 1 --disable-pip-version-check
    --constraint "$root/constraints.txt")
  "${install[@]}" --extra-index-url https://download.pytorch.org/whl/cpu "torch==$torch+cpu" &&
    "${install[@]}" --editable "${root}[parity]" &&
    "${install[@]}" --no-deps timm &&
    echo "$stamp" >"$installed"
}
