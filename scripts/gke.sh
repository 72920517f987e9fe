#!/usr/bin/env bash
# Trains on TPU slices of a GKE cluster: writes the manifest of a JobSet, one job for each slice, and
# applies it. The cluster starts all of them again whenever one ends early.
#
#   scripts/gke.sh [run] --name=l16 --topology=v5e:16x16 --slices=2 --image=IMAGE [FLAG...] -- \
#     --config configs/vit_l16_i21k.py --workdir gs://BUCKET/l16
#   scripts/gke.sh delete --name=l16 [--context=CONTEXT] [--namespace=NAMESPACE]
#
# It looks at what is there first, so the same command may be given again: a JobSet that runs is
# kept, one that has failed is replaced, and the training goes on from its last checkpoint.
#
#   run       (default) until the JobSet is there
#   delete    the JobSet; the work directory stays
#
#   --name              of the JobSet
#   --topology          of each slice: v4:, v5e:, v5p: or v6e:, then its sides, such as v5e:16x16
#   --slices            how many; default: 1
#   --chips_per_host    of the node pool's machines (ct5lp-hightpu-4t has 4); default: 4
#   --image             container image with this project in its working directory (docs/launch.md)
#   --service_account   of Kubernetes, one that may write to the work directory; default: default
#   --spot              on spot nodes
#   --node_selector     one more label that the nodes must have, KEY=VALUE
#   --save_secs         how long a process may take to save when its node is taken; default: 300
#   --max_restarts      default: 100
#   --context           of kubectl; default: the current one
#   --namespace         default: the current one
#   --follow            show the log until the JobSet has ended; Ctrl-C ends that alone
#   --poll_secs         how often --follow looks at the JobSet; default: 30
#   --dry_run           show the commands and the manifest, and run none
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/launcher.sh"

action=run
case ${1:-} in
  run | delete)
    action=$1
    shift
    ;;
esac
name="" topology="" slices=1 chips_per_host=4 image="" service_account=default spot=""
node_selector="" save_secs=300 max_restarts=100 context="" namespace="" follow="" poll_secs=30
parse "name topology slices chips_per_host image service_account node_selector save_secs \
max_restarts context namespace poll_secs" "spot follow" "$@"

# kube VERB ARGUMENT...: a command of kubectl in this cluster; sets `command`.
kube() {
  command=(kubectl ${context:+--context="$context"} ${namespace:+--namespace="$namespace"} "$@")
}

# How to end it, at the end of messages.
ending() {
  quoted "$0" delete --name="$name" ${context:+--context="$context"} \
    ${namespace:+--namespace="$namespace"}
}

# text WORD: as a string of YAML, on one line.
text() {
  printf '"%s"' "$(printf '%s' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g' |
    awk 'NR > 1 { printf "\\n" } { printf "%s", $0 }')"
}

# Sets `accelerator`, GKE's name of the generation, and `pods`, the hosts of a slice.
read_topology() {
  local side chips=1 more example
  case $topology in
    v4:*) accelerator=tpu-v4-podslice more=2 example=v4:4x4x8 ;;
    v5e:*) accelerator=tpu-v5-lite-podslice more=1 example=v5e:16x16 ;;
    v5p:*) accelerator=tpu-v5p-slice more=2 example=v5p:4x4x8 ;;
    v6e:*) accelerator=tpu-v6e-slice more=1 example=v6e:16x16 ;;
    *) die "--topology=$topology: begin with v4:, v5e:, v5p: or v6e:, such as v5e:16x16." ;;
  esac
  sides=${topology#*:}
  [[ $sides =~ ^[1-9][0-9]*(x[1-9][0-9]*){$more}$ ]] ||
    die "--topology=$topology: give the $((more + 1)) sides of a slice, such as $example."
  for side in ${sides//x/ }; do chips=$((chips * side)); done
  ((chips >= chips_per_host)) || chips_per_host=$chips
  pods=$((chips / chips_per_host))
  ((pods * chips_per_host == chips)) ||
    die "--topology=$topology has $chips chips, which hosts of --chips_per_host=$chips_per_host" \
      "chips do not divide; the node pool's machine type says how many its hosts have."
  ((slices == 1 || pods > 1)) ||
    die "--slices=$slices: GKE joins only slices of more than one host, and --topology=$topology" \
      "fits on one."
}

# A process's own error, status 1 or 2, ends the JobSet; anything else starts all jobs again.
manifest() {
  local word selector=""
  [[ -z $spot ]] || selector='
                cloud.google.com/gke-spot: "true"'
  [[ -z $node_selector ]] || selector+="
                $(text "${node_selector%%=*}"): $(text "${node_selector#*=}")"
  cat <<END
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: $name
  annotations:
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
    vit-jax-manifest: "$1"
spec:
  failurePolicy:
    maxRestarts: $max_restarts
    rules:
      - name: own_error
        action: FailJobSet
        onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
    - name: slice
      replicas: $slices
      template:
        spec:
          parallelism: $pods
          completions: $pods
          backoffLimit: 0
          podFailurePolicy:
            rules:
              - action: FailJob
                onExitCodes:
                  containerName: train
                  operator: In
                  values: [1, 2]
          template:
            spec:
              restartPolicy: Never
              terminationGracePeriodSeconds: $save_secs
              serviceAccountName: $(text "$service_account")
              hostNetwork: true
              dnsPolicy: ClusterFirstWithHostNet
              nodeSelector:
                cloud.google.com/gke-tpu-accelerator: $accelerator
                cloud.google.com/gke-tpu-topology: $sides$selector
END
  [[ -z $spot ]] || cat <<END
              tolerations:
                - key: cloud.google.com/gke-spot
                  operator: Equal
                  value: "true"
                  effect: NoSchedule
END
  cat <<END
              containers:
                - name: train
                  image: $(text "$image")
                  command:
END
  for word in python -m vit_jax.train "${training[@]}"; do
    # Kubernetes replaces $(NAME), and takes $$( for $(.
    echo "                    - $(text "${word//\$(/\$\$(}")"
  done
  cat <<END
                  resources:
                    limits:
                      google.com/tpu: $chips_per_host
END
}

# Prints "sum=CHECKSUM state=STATE" of the JobSet, or nothing where there is none; STATE is empty
# while it runs.
look() {
  local errors
  kube get jobset "$name" --ignore-not-found \
    --output="jsonpath=sum={.metadata.annotations.vit-jax-manifest} state={.status.terminalState}"
  if show "${command[@]}"; then
    return
  elif errors=$("${command[@]}" 2>&1 >&4); then
    return
  elif [[ $errors == *"resource type"* ]]; then
    die "The cluster has no JobSet. Install it: https://jobset.sigs.k8s.io/docs/installation/"
  else
    die "kubectl cannot say whether $name is there: $errors"
  fi
} 4>&1

delete_jobset() {
  kube delete jobset "$name" --ignore-not-found
  run "${command[@]}" || die "$name could not be deleted; kubectl says why above. The same again:" \
    "  $(ending)"
}

apply() {
  kube apply --filename=-
  if show "${command[@]}"; then
    manifest "$sum" >&3
    return
  fi
  manifest "$sum" | "${command[@]}" ||
    die "kubectl could not apply the manifest; it says why above. The same command goes on."
}

# The log of the first process, which speaks for all; sets `command`.
log_command() {
  local selector="jobset.sigs.k8s.io/jobset-name=$name,jobset.sigs.k8s.io/job-index=0"
  kube logs --follow --selector="$selector,batch.kubernetes.io/job-completion-index=0"
}

# Shows the log until the JobSet has ended, that of one pod after the other.
follow_log() {
  local found
  [[ -n $follow ]] || return 0
  while true; do
    log_command
    if show "${command[@]}"; then return; fi
    "${command[@]}" 2>/dev/null || true # there is no pod yet, or no longer
    found=$(look)
    case $found in
      "") die "$name is no longer there. The same command starts it again." ;;
      *state=Completed)
        note "$name has finished"
        return
        ;;
      *state=Failed) die "$name has failed; the reason is above. When it is mended, the same" \
        "command goes on." ;;
    esac
    sleep "$poll_secs"
  done
}

hints() {
  kube get jobset "$name" --watch
  echo "  watch    $(quoted "${command[@]}")"
  log_command
  echo "  log      $(quoted "${command[@]}")"
  echo "  delete   $(ending)"
}

require name
[[ $name =~ ^[a-z]([-a-z0-9]*[a-z0-9])?$ && ${#name} -le 40 ]] ||
  die "--name=$name: at most 40 small letters, digits and \"-\", the first a letter."
need kubectl "Install it (https://kubernetes.io/docs/tasks/tools/), then log in to the cluster:
  gcloud container clusters get-credentials CLUSTER --location=LOCATION"
if [[ $action == delete ]]; then
  delete_jobset
  exit 0
fi

require topology image
number slices chips_per_host save_secs max_restarts
[[ $poll_secs =~ ^[0-9]+(\.[0-9]+)?$ ]] || die "--poll_secs=$poll_secs: give seconds."
[[ -z $node_selector || $node_selector == ?*=* ]] ||
  die "--node_selector=$node_selector: give KEY=VALUE."
read_topology
require_training gs://BUCKET/l16
[[ " ${training[*]} " == *" --workdir"[=\ ]gs://* ]] ||
  die "--workdir has to be gs://...: all processes write there, and it outlives the nodes."
sum=$(manifest "" | cksum | tr ' ' -)

found=$(look)
case $found in
  "") ;;
  *state=Failed)
    note "$name has failed; putting it there anew. Its work directory has the last checkpoint."
    delete_jobset
    ;;
  "sum=$sum state=Completed")
    note "$name has finished"
    hints
    exit 0
    ;;
  *state=Completed)
    note "$name has finished with other settings; putting the new ones there"
    delete_jobset
    ;;
  "sum=$sum state=")
    note "$name is there already"
    hints
    follow_log
    exit 0
    ;;
  *) die "$name runs with other settings. To change them, delete it, then the same command again:" \
    "  $(ending)" ;;
esac
apply
if [[ -n $dry_run ]]; then
  follow_log
  exit 0
fi
note "$name is there: $slices x $topology, $((slices * pods)) hosts"
hints
follow_log
