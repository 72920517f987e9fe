# shellcheck shell=bash
# Sourced by the launchers: flags, messages, and commands that --dry_run shows and does not run.
#
# Defines what environment.sh does, the functions below, and `training`: the arguments behind "--".
# Works with the bash 3.2 of macOS.

# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

dry_run=""
training=()
config_file=""
exec 3>&1 # what --dry_run shows, also inside $(...)

# The comment at the head of the script.
usage() { awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"; }

# parse VALUES SWITCHES ARGUMENT...: sets a variable for each flag, --zone=X or --zone X. VALUES and
# SWITCHES are the flags that take a value and those that do not, in one word each.
parse() {
  local values=" $1 " switches=" $2 dry_run " flag
  shift 2
  while [[ $# -gt 0 ]]; do
    flag=${1%%=*}
    flag=${flag#--}
    if [[ $1 == --help || $1 == -h ]]; then
      usage
      exit 0
    elif [[ $1 == -- ]]; then
      shift
      training=("$@")
      return
    elif [[ $1 == --* && $switches == *" $flag "* && $1 != *=* ]]; then
      printf -v "$flag" true
    elif [[ $1 == --*=* && $values == *" $flag "* ]]; then
      printf -v "$flag" '%s' "${1#*=}"
    elif [[ $1 == --* && $values == *" $flag "* && $# -gt 1 ]]; then
      printf -v "$flag" '%s' "$2"
      shift
    elif [[ $1 == --* && $values == *" $flag "* ]]; then
      die "$1 needs a value; $0 --help shows them all."
    else
      die "\"$1\" is none of the flags of ${0##*/}; $0 --help shows them all." \
        "What vit_jax.train gets comes behind \" -- \"."
    fi
    shift
  done
}

# require FLAG...: each of them has to have a value.
require() {
  local flag missing=""
  for flag in "$@"; do
    [[ -n ${!flag} ]] || missing+=" --$flag"
  done
  [[ -z $missing ]] || die "${0##*/} needs$missing; $0 --help says what they are."
}

# number FLAG...: each has to be a whole number from 1.
number() {
  local flag
  for flag in "$@"; do
    [[ ${!flag} =~ ^[1-9][0-9]*$ ]] || die "--$flag=${!flag}: give a whole number, at least 1."
  done
}

# need PROGRAM HINT: it has to be there, unless nothing is run.
need() {
  [[ -n $dry_run ]] || command -v "$1" >/dev/null || die "$1 is not on the PATH. $2" \
    "With --dry_run this script shows what it would do without it."
}

# require_training EXAMPLE: what vit_jax.train needs at least; EXAMPLE of a work directory.
require_training() {
  local words=" ${training[*]-} "
  [[ $words == *" --config"[=\ ]* && $words == *" --workdir"[=\ ]* ]] ||
    die "Give what vit_jax.train gets behind \" -- \", with a config and a work directory:" \
      "  $0 ... -- --config configs/vit_l16_i21k.py --workdir $1"
}

# require_config FOLDER: the file has to be there, where trainings start, "$root/" or "" for here; or
# it is one of this clone, as vit_jax.train takes it. Sets `config_file`, as given, or in the clone.
require_config() {
  local word before="" file
  for word in "${training[@]}"; do
    [[ $before != --config ]] || word=--config=$word
    [[ $word != --config=* ]] || config_file=${word#--config=}
    before=$word
  done
  config_file=${config_file%%:*} # without its variant
  file=$1$config_file
  if [[ ! -f $file && -f $root/configs/$config_file.py ]]; then
    config_file=configs/$config_file.py
    file=$root/$config_file
  elif [[ $config_file == configs/* && ! -d ${1}configs ]]; then
    file=$root/$config_file
  fi
  [[ -f $file ]] || die "--config=$config_file: there is no such file in ${1:-$PWD}," \
    "where the training starts. Name it as seen from there."
}

# quoted WORD...: as one would type it.
quoted() {
  local word line=""
  for word in "$@"; do
    if [[ ! $word =~ ^[A-Za-z0-9_./:=@,+%-]+$ ]]; then
      word=$(printf '%s' "$word" | sed "s/'/'\\\\''/g")
      word="'$word'"
    fi
    line+=" $word"
  done
  printf '%s\n' "${line# }"
}

# note TEXT...: what happens now; a comment among the commands of --dry_run.
note() { if [[ -n $dry_run ]]; then echo "# $*" >&3; else echo "$(date +%H:%M:%S)  $*"; fi; }

# show COMMAND...: in a dry run prints it and succeeds; else fails.
show() { [[ -n $dry_run ]] && quoted "$@" >&3; }

# run COMMAND...: shows or runs it.
run() { show "$@" || "$@"; }
