#!/usr/bin/env bash
# Stop this host's router, which lets its turns end, then its engines; they do not come back at a boot.
#
#   sudo ./stop.sh [--dry-run]
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

dry_run_alone "$@"
need_root
need_host

while IFS= read -r unit; do
    say "$unit"
    run systemctl disable --now "$unit"
done < <(units | tac)
say "stopped"
