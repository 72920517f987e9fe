#!/usr/bin/env bash
# The half of cloud_tpu.sh that runs on each worker of a slice; that script copies and calls it.
#
#   tpu_worker.sh install              the project, and what it needs on a TPU
#   tpu_worker.sh start JOB ARGUMENT...   trains in the background, unless it is running already
#   tpu_worker.sh status [JOB]         one line: worker HOST STATE CODE LOG_BYTES
#   tpu_worker.sh follow JOB BYTE      the log from there on, for a minute or until the run ends
#   tpu_worker.sh complaint JOB        the end of the log, if the training failed here
#   tpu_worker.sh stop                 as SIGTERM: the training saves, and is not started again
#
# JOB is a name for the arguments of vit_jax.train. STATE is installed, running, finished, stopped,
# failed-STATUS, gave-up-STATUS, or busy-JOB where another one is running. CODE is the checksum of
# the files that were installed. LAUNCHED is where logs and states are; default: ~/launched.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$root"

launched=${LAUNCHED:-$HOME/launched}
action=${1:?see the head of this script}
job=${2:-$(cat "$launched/job" 2>/dev/null || true)}
here=$launched/$job # log, state
mkdir -p "$here"

# The training and the loop around it hold this lock, so it is free as soon as both are gone,
# whatever became of them; a file with a number could outlive them.
running() { ! flock --nonblock "$launched/lock" true; }

# Ubuntu 22.04, which the TPU images are made of, has Python 3.10. An earlier installation may still
# be running, when its launcher was interrupted: the lock waits for it.
install() {
  exec 9>"$launched/installing"
  flock 9
  if ! supported "$python" "${VERSIONS[@]}" && ! (find_python) &>/dev/null; then
    curl -LsSf https://astral.sh/uv/install.sh | sh
    "$HOME/.local/bin/uv" python install 3.12
    PYTHON=$("$HOME/.local/bin/uv" python find 3.12)
  fi
  make_environment tpu,gcs # work directories are on gs://
  cp "$HOME/vit_jax.cksum" "$root/installed.cksum"
}

start() {
  if running; then
    return
  fi
  rm -f "$here/state" "$launched/stop"
  echo "$job" >"$launched/job"
  # --timeout, since `running` holds the lock for an instant; --no-fork, so that the loop leads the
  # group of processes that `stop` signals.
  setsid flock --timeout 10 --no-fork "$launched/lock" \
    bash "$root/scripts/tpu_worker.sh" loop "$job" "$@" >>"$here/log" 2>&1 </dev/null &
  # Whoever asks next has to see it running; one that has already ended has a state.
  for _ in {1..100}; do
    if running || [[ -e $here/state ]]; then
      return
    fi
    sleep 0.1
  done
  die "The training could not be started; see $here/log."
}

# A process that was killed is like a lost one, so a signal (128 and more) is restarted as 75 and 76
# are. Five starts in a row that end within ten minutes will not be helped by a sixth.
loop() {
  local status began short=0 stopped=""
  echo $$ >"$launched/pid"
  trap 'stopped=true' TERM INT
  while [[ -z $stopped ]]; do
    began=$SECONDS
    status=0
    "$python" -m vit_jax.train "$@" || status=$?
    short=$((SECONDS - began < 600 ? short + 1 : 0))
    if [[ $status == 0 ]]; then
      echo finished >"$here/state"
      return
    elif [[ $status != 75 && $status != 76 && $status -le 128 ]]; then
      echo "failed-$status" >"$here/state"
      return
    elif [[ $short -ge 5 ]]; then
      echo "gave-up-$status" >"$here/state"
      echo "Gave up: five starts in a row ended within ten minutes, the last with status $status."
      return
    fi
    echo "Ended with status $status${stopped:+, as it was asked to}."
  done
  # Without that file the machine itself ends, and the launcher starts the training again.
  [[ ! -e $launched/stop ]] || echo stopped >"$here/state"
}

status() {
  local state=installed log_bytes=0
  if running; then
    state=running
    [[ $(cat "$launched/job") == "$job" ]] || state=busy-$(cat "$launched/job")
  elif [[ -e $here/state ]]; then
    state=$(cat "$here/state")
  fi
  [[ ! -e $here/log ]] || log_bytes=$(wc -c <"$here/log")
  echo "worker $(hostname) $state $(cat installed.cksum 2>/dev/null || echo none) $log_bytes"
}

follow() {
  local until=(--follow --pid="$(cat "$launched/pid")")
  running || until=()
  timeout "${FOLLOW_SECS:-60}" tail --bytes="+$(($1 + 1))" "${until[@]}" "$here/log" || true
}

complaint() {
  case $(cat "$here/state" 2>/dev/null) in
    failed-* | gave-up-*) echo "$(hostname):" && tail -n 20 "$here/log" ;;
  esac
}

stop() {
  running || return 0
  touch "$launched/stop"
  kill -TERM -- "-$(cat "$launched/pid")"
  while running; do sleep 0.2; done
}

case $action in
  install | status | complaint | stop) "$action" ;;
  start | loop | follow) "$action" "${@:3}" ;;
  *) die "tpu_worker.sh has no action \"$action\"." ;;
esac
