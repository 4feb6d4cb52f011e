#!/usr/bin/env bash
# What can be seen from this host: devices, units, engines, router, and how KV travels. Changes nothing.
#
#   ./check.sh [--wait SECONDS] [--dry-run]
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

WAIT=0
while [[ $# -gt 0 ]]; do
    case "$1" in
        --dry-run) DRY_RUN=yes ;;
        --wait)
            WAIT="${2:-}"
            [[ "$WAIT" =~ ^[0-9]+$ ]] || fail "--wait = $WAIT: give seconds"
            shift
            ;;
        *) fail "no option $1: there are --wait SECONDS and --dry-run" ;;
    esac
    shift
done
need_host

FAULTS=0
UNTIL=$((SECONDS + WAIT))

# check WHAT COMMAND...: a line for it; its output only when it fails.
check() {
    local what="$1" output
    shift
    if [[ -n "$DRY_RUN" ]]; then
        run "$@"
    elif output="$("$@" 2>&1)"; then
        printf 'ok    %s\n' "$what"
    else
        printf 'FAIL  %s\n%s\n' "$what" "$output"
        FAULTS=$((FAULTS + 1))
    fi
}

# await UNIT WHAT COMMAND...: the same, tried until the time to wait is over, or the unit has failed: then its
# log's end comes first, since systemd starts it no more.
await() {
    local unit="$1" what="$2"
    shift 2
    while [[ -z "$DRY_RUN" && "$SECONDS" -lt "$UNTIL" ]] && ! "$@" > /dev/null 2>&1; do
        if systemctl is-failed --quiet "$unit"; then
            journalctl --no-pager --unit "$unit" --lines 30 || true
            break
        fi
        sleep 5
    done
    check "$what" "$@"
}

# Whether a unit's present life has logged something.
in_journal() {
    local life
    life="$(systemctl show --property InvocationID --value "$1")"
    journalctl --no-pager "_SYSTEMD_INVOCATION_ID=$life" | grep --fixed-strings "$2" > /dev/null \
        || { printf 'its log does not say "%s"\n' "$2" && return 1; }
}

# How much KV an engine has received, and how fast.
transfers() {
    curl --fail --silent --max-time 10 "$1/metrics" \
        | awk '/^vllm:nixl_(xfer_time_seconds_(sum|count)|bytes_transferred_sum|num_failed_transfers_total)/ {
            name = $1; sub(/[{].*/, "", name); total[name] += $NF
        }
        END {
            count = total["vllm:nixl_xfer_time_seconds_count"] + 0
            seconds = total["vllm:nixl_xfer_time_seconds_sum"] + 0
            bytes = total["vllm:nixl_bytes_transferred_sum"] + 0
            printf "      transfers %d, failed %d, GB %.2f", count, total["vllm:nixl_num_failed_transfers_total"], bytes / 1e9
            if (seconds > 0) printf ", GB/s while transferring %.2f", bytes / 1e9 / seconds
            printf "\n"
        }' || printf '      no metrics\n'
}

if [[ -n "$ENGINES" && "$PRESET" != cpu ]]; then
    check "GPUs" nvidia-smi --list-gpus
fi
if [[ -n "$ENGINES" && "$PRESET" == efa ]]; then
    check "EFA devices in /dev/infiniband" bash -c 'compgen -G "/dev/infiniband/uverbs*"'
    check "libfabric finds EFA" env PATH="$PATH:/opt/amazon/efa/bin" timeout 60 fi_info -p efa -t FI_EP_RDM
fi
while IFS= read -r unit; do
    check "$unit" systemctl is-active "$unit"
done < <(units)
read -r -a urls <<< "$ENGINE_URLS"
for engine in $ENGINES; do
    url="${urls[0]}"
    urls=("${urls[@]:1}")
    await "antiphon-engine@$engine.service" "$url answers" \
        curl --fail --silent --show-error --max-time 5 --output /dev/null "$url/health"
    if [[ -z "$DRY_RUN" ]]; then
        transfers "$url"
    fi
done
if [[ -n "$ENGINES" && "$PRESET" == efa ]]; then
    for engine in $ENGINES; do
        check "$engine uses LIBFABRIC" in_journal "antiphon-engine@$engine" "Backend LIBFABRIC was instantiated"
    done
fi
if [[ -n "$ROUTER_URL" ]]; then
    await antiphon-router.service "$ROUTER_URL is ready" \
        curl --fail --silent --show-error --max-time 5 --output /dev/null "$ROUTER_URL/ready"
fi
if [[ "$FAULTS" -gt 0 ]]; then
    fail "$FAULTS not in order; docs/efa.md, \"What goes wrong\""
fi
say "in order"
