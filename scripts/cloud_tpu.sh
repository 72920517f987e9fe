#!/usr/bin/env bash
# Trains on a Cloud TPU slice: asks for it, installs this clone on its workers, starts the training
# on all of them, shows the log, and keeps it going until it has finished.
#
#   scripts/cloud_tpu.sh [run] --name=NAME --zone=ZONE --type=v5litepod-256 [FLAG...] -- \
#     --config configs/vit_l16_i21k.py --workdir gs://BUCKET/l16
#   scripts/cloud_tpu.sh status|stop|delete --name=NAME --zone=ZONE [--project=PROJECT]
#
# Each step looks at what is already there, so the same command again continues wherever this script
# was interrupted, and attaches to a training that runs. The training does not need this script: it
# is restarted on its workers, on status 75 and 76. A slice that was taken back is asked for again.
#
#   run       (default) everything that is left to be done
#   status    what each worker is doing
#   stop      as SIGTERM: the training saves and ends; the slice stays, and is paid for
#   delete    the slice and the request for it; the work directory stays
#
#   --name            of the slice and of the request for it (a queued resource)
#   --zone            such as us-west4-a
#   --type            accelerator type, such as v5litepod-256, v5p-128, v6e-64
#   --project         default: that of gcloud
#   --runtime         software of the workers; default: the one that fits the type
#   --spot            cheaper, and may be taken back at any time
#   --reserved        from a reservation
#   --valid_for       give up if there is no slice after this time, such as 6h; default: wait
#   --create_flag     one more flag for "queued-resources create", such as --create_flag=--network=x
#   --delete          delete the slice when the training has finished; default: keep it
#   --poll_secs       how often to look while waiting; default: 30
#   --dry_run         show the commands, from nothing to the end, and run none
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/launcher.sh"

action=run
case ${1:-} in
  run | status | stop | delete)
    action=$1
    shift
    ;;
esac
name="" zone="" type="" project="" runtime="" valid_for="" create_flag="" poll_secs=30
spot="" reserved="" delete=""
parse "name zone type project runtime valid_for create_flag poll_secs" "spot reserved delete" "$@"

bundle=${XDG_CACHE_HOME:-$HOME/.cache}/vit_jax/launch/$name # what is sent to the workers
worker="bash vit_jax/scripts/tpu_worker.sh"
answer="" # to the last question to all workers
errors=$bundle/errors # what gcloud said meanwhile
# What --dry_run takes for the truth: the request's state, and that of the workers.
pretend_request=absent
pretend_workers="nothing none"

# tpus GROUP COMMAND NAME ARGUMENT...: a command of gcloud about this slice; sets `command`.
tpus() {
  command=(gcloud compute tpus "$@" --zone="$zone" ${project:+--project="$project"} --quiet)
}

# on WORKER COMMAND: the same for a command on a worker, or on all; it notices if that vanishes.
on() {
  tpus tpu-vm ssh "$name" --worker="$1" --ssh-flag=-oServerAliveInterval=30 --command="$2"
}

pause() { [[ -n $dry_run ]] || sleep "$poll_secs"; }

# How to go on, at the end of messages.
same() { quoted "$0" "$1" --name="$name" --zone="$zone" ${project:+--project="$project"}; }

interrupted() {
  trap - INT TERM
  printf '\n%s\n' "Interrupted. What has been started goes on, and the slice is paid for." \
    "  go on here    the same command again" \
    "  stop          $(same stop)" "  delete        $(same delete)" >&2
  exit 130
}

# Prints the state of the request, absent, WAITING_FOR_RESOURCES, ACTIVE, ..., and what it is for;
# fails if gcloud cannot say it.
request_state() {
  tpus queued-resources describe "$name" \
    --format="value(state.state,tpu.nodeSpec[0].node.acceleratorType)"
  if show "${command[@]}"; then
    echo "$pretend_request"
  elif ! "${command[@]}" 2>"$errors"; then
    grep -q NOT_FOUND "$errors" && echo absent
  fi
}

default_runtime() {
  case $type in
    v2-* | v3-* | v4-*) echo tpu-ubuntu2204-base ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
    *) die "--type=$type is not among v2-, v3-, v4-, v5litepod-, v5p- and v6e-..., so say which" \
      "software it needs with --runtime: https://cloud.google.com/tpu/docs/runtimes" ;;
  esac
}

create() {
  note "Asking for $type in $zone"
  tpus queued-resources create "$name" --node-id="$name" --accelerator-type="$type" \
    --runtime-version="$runtime" \
    ${spot:+--spot} ${reserved:+--reserved} \
    ${valid_for:+--valid-until-duration="$valid_for"} ${create_flag:+"$create_flag"}
  run "${command[@]}" || die "gcloud does not take the request; it says why above." \
    "Nothing has been created; the same command again asks once more."
  pretend_request=ACTIVE
}

delete_slice() {
  tpus queued-resources delete "$name" --force
  run "${command[@]}" || die "$name could not be deleted; gcloud says why above. It is still paid" \
    "for: $(same delete)"
  pretend_request=absent
}

checksum() { cksum | tr ' ' -; }

# Lists the files that git knows or would take, as they are now; sets `code`, their checksum.
list_files() {
  local file
  git -C "$root" rev-parse &>/dev/null ||
    die "$root is not a git repository, and this script sends the files that git lists. Clone it."
  git -C "$root" ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do
      [[ ! -f $root/$file ]] || printf '%s\0' "$file"
    done >"$bundle/files"
  code=$(cd "$root" && xargs -0 cksum <"$bundle/files" | checksum)
}

install() {
  note "Installing this clone on all workers (some minutes)"
  [[ -n $dry_run ]] || echo "$code" >"$bundle/vit_jax.cksum"
  local failed="The reason is above. The same command again goes on. The slice is still paid for:"
  run tar -czf "$bundle/vit_jax.tar.gz" -C "$root" --null -T "$bundle/files" ||
    die "Packing the clone failed. $failed" "  $(same delete)"
  tpus tpu-vm scp "$bundle/vit_jax.tar.gz" "$bundle/vit_jax.cksum" "$name:" --worker=all
  run "${command[@]}" || die "Copying the clone to the workers failed. $failed" "  $(same delete)"
  # Without installed.cksum nothing there is trusted, so an installation that broke off is repeated.
  on all "mkdir -p vit_jax && rm -f vit_jax/installed.cksum &&\
 tar -xzf vit_jax.tar.gz -C vit_jax && $worker install"
  run "${command[@]}" || die "Installing on the workers failed. $failed" "  $(same delete)"
  pretend_workers="installed $code"
}

start() {
  note "Starting the training on all workers"
  on all "$worker start $job $(quoted "${training[@]}")"
  if ! run "${command[@]}"; then
    setback "Not all workers could start it"
    return
  fi
  ours=1 # from now on a failure, or a stop, is news
  pretend_workers="running $code"
}

# Shows the log of worker 0, which speaks for all while all is well, for a minute or to its end.
follow() {
  on 0 "$worker follow $job $seen"
  if show "${command[@]}"; then
    pretend_workers="finished $code"
  else
    "${command[@]}" 2>"$errors" | tee "$bundle/log" || true
    seen=$((seen + $(wc -c <"$bundle/log")))
  fi
}

stop() {
  on all "$worker stop"
  run "${command[@]}"
}

# Asks all workers; fails if one does not answer.
ask_workers() {
  on all "if [ -e vit_jax/installed.cksum ]; then $worker status $job;\
 else echo worker \$(hostname) nothing none 0; fi"
  if show "${command[@]}"; then
    answer="worker all $pretend_workers 0"
  else
    answer=$("${command[@]}" 2>"$errors")
  fi
}

# What is to be done next, by the workers' answers.
next_step() {
  awk -v code="$code" -v ours="$ours" '
    $1 != "worker" { next }
    { workers++ }
    $3 ~ /^busy-/ { busy = 1; next }
    $3 ~ /^(failed|gave-up)-/ && ours { failed = 1; next }
    $3 == "stopped" && ours { stopped = 1; next }
    $3 == "finished" && (ours || $4 == code) { finished++; next }
    $3 == "running" { running = 1; if ($4 != code) other = 1; next }
    $4 != code { bare = 1; next }
    { idle = 1 }
    END {
      if (!workers) print "nobody"
      else if (failed) print "failed"
      else if (stopped) print "stopped"
      else if (busy) print "busy"
      else if (finished == workers) print "finished"
      else if (bare && other) print "mixed"
      else if (bare) print "install"
      else if (idle || !running) print "start"
      else if (other && !ours) print "attach"
      else print "follow"
    }' <<<"$answer"
}

# Worker 0's part of the log that an earlier call has shown, all but its last lines.
log_bytes() {
  awk '$1 == "worker" && $2 ~ /(^all|-0)$/ { print ($5 > 2000 ? $5 - 2000 : 0) }' <<<"$answer"
}

# setback TEXT: what may be better in a moment, but not for ever.
setback() {
  setbacks=$((setbacks + 1))
  [[ $setbacks -lt 10 ]] || die "$1, ten times in a row: $(tail -n 5 "$errors")" \
    "The same command again goes on. The slice is still paid for:" "  $(same delete)"
  note "$1; looking again"
  pause
}

# One look at the workers of an active slice, and the next step. Fails when nothing is left to do.
tend() {
  if ! ask_workers; then
    setback "Not all workers answer"
    return
  fi
  seen=${seen:-$(log_bytes)}
  seen=${seen:-0}
  local step
  step=$(next_step)
  case $step in
    install | start) "$step" ;;
    attach | follow)
      [[ $step == follow ]] ||
        note "It runs with files that differ from this clone; to change that, first $(same stop)"
      ours=1
      setbacks=0
      follow
      [[ -s $bundle/log ]] || pause # it has ended on worker 0 and not on others
      ;;
    finished)
      follow
      note "The training has finished on all workers"
      return 1
      ;;
    failed)
      stop || true
      on all "$worker complaint $job"
      "${command[@]}" 2>/dev/null || true
      die "The training failed; the reason is above. When it is mended, the same command again" \
        "goes on. The slice is still paid for: $(same delete)"
      ;;
    stopped) die "The training was stopped by another command. The same command again goes on." \
      "The slice is still paid for: $(same delete)" ;;
    busy) die "$name trains something else. Wait for it, take another --name, or end it:" \
      "  $(same stop)" ;;
    mixed) die "Workers that run the training have other files than this clone, and others none." \
      "End it, then the same command again installs and goes on: $(same stop)" ;;
    nobody) die "The workers' answer is not understood: $answer" ;;
  esac
}

run_all() {
  local found state has shown="" there=""
  while true; do
    if ! found=$(request_state); then
      [[ -n $shown ]] || die "gcloud cannot say what has become of $name: $(cat "$errors")"
      setback "gcloud cannot say what has become of $name"
      continue
    fi
    read -r state has <<<"$found"
    [[ ${has:-$type} == "$type" ]] || die "$name is there already, as $has, not as --type=$type." \
      "Take another --name, or first: $(same delete)"
    case $state in
      absent)
        [[ -z $there ]] || die "$name was deleted by another command. The same command again asks" \
          "for it anew."
        create
        ;;
      ACTIVE)
        there=1
        tend || break
        ;;
      SUSPENDED)
        note "The slice was taken back; asking for it again"
        seen="" there=""
        delete_slice
        ;;
      FAILED)
        tpus queued-resources describe "$name" --format="value(state.failedData.error.message)"
        die "The request failed: $("${command[@]}" 2>&1 || true)" \
          "Delete it, then ask for something else (--type, --zone, --spot, --valid_for):" \
          "  $(same delete)"
        ;;
      *)
        [[ $state == "$shown" ]] || note "The request is $state"
        [[ $state == DELETING ]] || there=1
        setbacks=0
        pause
        ;;
    esac
    shown=$state
  done
  if [[ -n $delete ]]; then
    delete_slice
  else
    note "The slice stays, and is paid for, until: $(same delete)"
  fi
}

require name zone
[[ $name =~ ^[a-z]([-a-z0-9]*[a-z0-9])?$ ]] ||
  die "--name=$name: begin with a letter; small letters, digits and \"-\" only."
need gcloud "Install the Google Cloud CLI (https://cloud.google.com/sdk/docs/install), then run
gcloud auth login."
[[ -n $dry_run ]] || mkdir -p "$bundle"
code=clone ours="" setbacks=0 seen=""
job=$(printf '%s\n' ${training[@]+"${training[@]}"} | checksum)

case $action in
  run)
    require type
    runtime=${runtime:-$(default_runtime)}
    [[ $poll_secs =~ ^[0-9]+(\.[0-9]+)?$ ]] || die "--poll_secs=$poll_secs: give seconds."
    require_training gs://BUCKET/l16
    [[ " ${training[*]} " == *" --workdir"[=\ ]gs://* ]] ||
      die "--workdir has to be gs://...: all workers write there, and it outlives the slice."
    require_config "$root/"
    ! git -C "$root" check-ignore --quiet "$config_file" 2>/dev/null ||
      die "--config=$config_file: git ignores this file, and what git ignores is not sent."
    [[ -n $dry_run ]] || list_files
    trap interrupted INT TERM
    run_all
    ;;
  status)
    tpus queued-resources describe "$name"
    run "${command[@]}"
    on all "$worker status"
    run "${command[@]}"
    ;;
  stop)
    stop || die "Not all workers could be asked; the reason is above. The same command again."
    ;;
  delete) delete_slice ;;
esac
