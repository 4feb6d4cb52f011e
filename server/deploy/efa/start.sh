#!/usr/bin/env bash
# Put this host's settings and units in place and start them, now and at each boot. What runs goes on as it
# is: for other settings, stop.sh first.
#
#   sudo ./start.sh [--dry-run]
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

dry_run_alone "$@"
need_root
need_host
if [[ -z "$DRY_RUN" && ! -x "$PREFIX/venv/bin/antiphon" ]]; then
    fail "no $PREFIX/venv/bin/antiphon: run prepare.sh first"
fi
if [[ -z "$DRY_RUN" && ! -f "$ETC/antiphon/secrets.env" ]]; then
    fail "no $ETC/antiphon/secrets.env: write ANTIPHON_ENGINE_KEY=... into it, the same on all hosts (an empty file: no key)"
fi

say "settings and units in $ETC"
for file in "$HERE"/engine-*.env "$HERE"/router.env; do
    if [[ -e "$file" ]]; then
        run install -D -m 0644 "$file" "$ETC/antiphon/$(basename "$file")"
    fi
done
for file in "$HERE"/*.service; do
    run install -D -m 0644 "$file" "$ETC/systemd/system/$(basename "$file")"
done
# Engines and a router that an earlier site had here.
for file in "$ETC"/antiphon/engine-*.env; do
    engine="$(basename "$file" .env)"
    engine="${engine#engine-}"
    if [[ -e "$file" && " $ENGINES " != *" $engine "* ]]; then
        run systemctl disable --now "antiphon-engine@$engine.service"
        run rm "$file"
    fi
done
if [[ -z "$ROUTER_URL" && -e "$ETC/antiphon/router.env" ]]; then
    run systemctl disable --now antiphon-router.service
    run rm "$ETC/antiphon/router.env"
fi
run systemctl daemon-reload

while IFS= read -r unit; do
    say "$unit"
    run systemctl enable --now "$unit"
done < <(units)
say "started; engines load the model for minutes. ./check.sh --wait 3600 waits; journalctl -u 'antiphon-*' -f shows why not"
