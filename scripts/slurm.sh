#!/usr/bin/env bash
# Trains on the GPUs of a SLURM cluster: submits a job with one process for each GPU, which puts
# itself into the queue again until the training has finished.
#
#   scripts/slurm.sh --name=l16 --nodes=4 --gpus=8 [FLAG...] -- \
#     --config configs/vit_l16_i21k.py --workdir /shared/l16
#
# A job of yours with this name that waits or runs is kept, so the same command may be given again.
# It goes back into the queue on status 75 and 76 and when a process was killed; not on an error.
#
#   --name            of the job
#   --nodes           how many
#   --gpus            GPUs on each node, and so processes
#   --cpus_per_gpu    CPU cores for each process; default: as the cluster decides
#   --memory          of each node, such as 400G; default: as the cluster decides
#   --time            limit of one go, such as 24:00:00; default: as the cluster decides
#   --partition       default: the cluster's
#   --account         default: yours
#   --python          interpreter on the nodes; default: .venv/bin/python of this clone
#   --log             file that all goes append to; default: launched/NAME.log in this clone
#   --save_secs       this long before the time limit the training saves and ends; default: 300
#   --max_restarts    at most so often it goes back into the queue; default: 100
#   --sbatch_flag     one more flag for sbatch, such as --sbatch_flag=--constraint=a100
#   --follow          show the log until the job has left the queue; Ctrl-C ends that alone
#   --poll_secs       how often --follow looks at the queue; default: 30
#   --dry_run         show the commands and the job script, and run none
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/launcher.sh"

name="" nodes="" gpus="" cpus_per_gpu="" memory="" time="" partition="" account=""
python=$VENV/bin/python log="" save_secs=300 max_restarts=100 sbatch_flag=""
follow="" poll_secs=30
parse "name nodes gpus cpus_per_gpu memory time partition account python log save_secs \
max_restarts sbatch_flag poll_secs" "follow" "$@"

# The job script. An error is status 1 or 2 of one process, or 126 or 127 where its Python cannot be
# run, and 76 of the others, or that of a signal, and srun ends with the highest: 249 to 252 instead
# make the error win (of 253 srun 22.05 makes 1). SLURM signals the shell around a process as well,
# which without the trap would end before the process has saved.
job() {
  cat <<END
#!/usr/bin/env bash
export PYTHONPATH=$(quoted "$root")\${PYTHONPATH:+:\$PYTHONPATH}
srun --kill-on-bad-exit=0 --wait=600 ${cpus_per_gpu:+--cpus-per-task=$cpus_per_gpu }bash -c '
  trap : TERM HUP USR1
  "\$@"
  status=\$?
  ((status == 1 || status == 2)) && ((status += 250))
  ((status == 126 || status == 127)) && ((status += 123))
  exit \$status
' training \\
  $(quoted "$python" -m vit_jax.train "${training[@]}")
status=\$?
case \$status in
  0)
    echo "The training has finished."
    exit 0 ;;
  251 | 252)
    echo "The training failed; the reason is above. When it is mended, submit it again."
    exit \$((status - 250)) ;;
  249 | 250)
    echo "A node cannot run the interpreter; the reason is above. When that is mended, or --python, submit it again."
    exit \$((status - 123)) ;;
esac
if [[ \${SLURM_RESTART_COUNT:-0} -ge $max_restarts ]]; then
  echo "Ended with status \$status, and has been in the queue $max_restarts times more: giving up."
  exit \$status
fi
echo "Ended with status \$status; going back into the queue."
scontrol requeue "\$SLURM_JOB_ID" || exit \$status
END
}

# Seconds of a time as SLURM writes it: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S; nothing if it is
# none of these.
seconds() {
  local part="([0-9]{1,9})"
  if [[ $1 =~ ^$part(:$part)?$ ]]; then
    echo $((10#${BASH_REMATCH[1]} * 60 + 10#0${BASH_REMATCH[3]}))
  elif [[ $1 =~ ^$part:$part:$part$ ]]; then
    echo $((10#${BASH_REMATCH[1]} * 3600 + 10#${BASH_REMATCH[2]} * 60 + 10#${BASH_REMATCH[3]}))
  elif [[ $1 =~ ^$part-$part(:$part)?(:$part)?$ ]]; then
    echo $((10#${BASH_REMATCH[1]} * 86400 + 10#${BASH_REMATCH[2]} * 3600 +
      10#0${BASH_REMATCH[4]} * 60 + 10#0${BASH_REMATCH[6]}))
  fi
}

# Shows the log as long as the job waits or runs.
follow_log() {
  local found
  [[ -n $follow ]] || return 0
  command=(tail -n 10 -F "$log")
  if show "${command[@]}"; then return; fi
  "${command[@]}" 2>/dev/null & # it complains until there is a log
  # shellcheck disable=SC2064  # the process is known now
  trap "kill $!" EXIT
  # A queue that does not answer is asked again.
  while ! found=$("${look[@]}" 2>/dev/null) || [[ -n $found ]]; do sleep "$poll_secs"; done
  sleep 1 # for the last lines
}

require name nodes gpus
number nodes gpus save_secs max_restarts
[[ $poll_secs =~ ^[0-9]+(\.[0-9]+)?$ ]] || die "--poll_secs=$poll_secs: give seconds."
[[ -z $cpus_per_gpu ]] || number cpus_per_gpu
limit=$(seconds "$time")
[[ -z $limit || $limit -gt $save_secs ]] || die "--time=$time is no longer than --save_secs=$save_secs:" \
  "the training would be told to save as soon as it starts, again and again. Give it more time."
[[ $name =~ ^[A-Za-z0-9_.-]+$ ]] || die "--name=$name: letters, digits, \"_\", \".\" and \"-\" only."
require_training /shared/l16
require_config ""
need sbatch "Run this script where jobs are submitted: on a login node of the cluster."
[[ -n $dry_run || -x $python ]] || die "There is no Python at $python. Install vit_jax there" \
  "(docs/install.md: pip install --editable '.[gpu]'), or name another with --python."
log=${log:-$root/launched/$name.log}
[[ $log == /* ]] || log=$PWD/$log

look=(squeue --me --noheader --name="$name" --format="%i %T")
if ! show "${look[@]}"; then
  found=$("${look[@]}") || die "squeue does not answer; it says why above. The same command again."
  if [[ -n $found ]]; then
    note "Job $found is there already, with what it was submitted with; to change that, first:"
    echo "  scancel ${found%% *}"
    echo "  tail -F $(quoted "$log")"
    follow_log
    exit 0
  fi
fi

command=(sbatch --parsable --job-name="$name" --nodes="$nodes" --ntasks-per-node="$gpus"
  --gpus-per-node="$gpus" ${cpus_per_gpu:+--cpus-per-task="$cpus_per_gpu"}
  ${memory:+--mem="$memory"} ${time:+--time="$time"} ${partition:+--partition="$partition"}
  ${account:+--account="$account"} --requeue --signal="TERM@$save_secs" --open-mode=append
  --output="$log" --chdir="$PWD" ${sbatch_flag:+"$sbatch_flag"})
run mkdir -p "$(dirname "$log")"
if show "${command[@]}"; then
  job >&3
  follow_log
  exit 0
fi
submitted=$(job | "${command[@]}") ||
  die "sbatch does not take the job; it says why above. The same command again submits it."
note "Submitted job ${submitted%%;*}"
echo "  squeue --jobs=${submitted%%;*}"
echo "  tail -F $(quoted "$log")"
follow_log
