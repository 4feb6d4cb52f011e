#!/usr/bin/env bash
# Put this host's settings and units in place and start them, now and at each boot. What runs goes on as it
# is: for other settings, stop.sh first.
#
#   sudo ./start.sh [--dry-run]
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
    "") ;;
    --dry-run) DRY_RUN=yes ;;
    *) fail "no option $1: there is --dry-run" ;;
esac
need_root
need_host
if [[ -z "$DRY_RUN" && ! -x "$PREFIX/venv/bin/antiphon" ]]; then
    fail "no $PREFIX/venv/bin/antiphon: run prepare.sh first"
fi
if [[ -z "$DRY_RUN" && ! -f "$ETC/antiphon/secrets.env" ]]; then
    fail "no $ETC/antiphon/secrets.env: write ANTIPHON_ENGINE_KEY=... into it, the same on all hosts (an empty file: no key)"
fi

say "settings and units in $ETC"
while IFS= read -r file; do
    run install -D -m 0644 "$HERE/etc/$file" "$ETC/$file"
done < <(cd "$HERE/etc" && find . -type f | sort | cut -c 3-)
# Engines that an earlier site had here.
for file in "$ETC"/antiphon/engine-*.env; do
    engine="$(basename "$file" .env)"
    engine="${engine#engine-}"
    if [[ -e "$file" && " $ENGINES " != *" $engine "* ]]; then
        run systemctl disable --now "antiphon-engine@$engine.service"
        run rm "$file"
    fi
done
run systemctl daemon-reload

while IFS= read -r unit; do
    say "$unit"
    run systemctl enable --now "$unit"
done < <(units)
say "started; engines load the model for minutes. ./check.sh --wait 1800 waits; journalctl -u 'antiphon-*' -f shows why not"
