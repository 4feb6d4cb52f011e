#!/usr/bin/env bash
# The one key of all engines and routers, in this host's secrets.env. What else stands there stays.
#
#   sudo ./key.sh --show              print the key of this host; nothing where there is none
#   sudo ./key.sh [--dry-run] < KEY   put it in place; a host with another key is refused
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

FILE="$ETC/antiphon/secrets.env"
NAME=ANTIPHON_ENGINE_KEY
SHOW=""

case "${1:-}" in
    "") ;;
    --show) SHOW=yes ;;
    --dry-run) DRY_RUN=yes ;;
    *) fail "no option $1: there are --show and --dry-run" ;;
esac
need_root

# As systemd reads it: the last one counts.
present() {
    if [[ -f "$FILE" ]]; then
        sed -n "s/^$NAME=//p" "$FILE" | tail -n 1 | tr -d "\"'[:space:]"
    fi
}

if [[ -n "$DRY_RUN" ]]; then
    say "would add $NAME to $FILE unless it is there"
    run install -d -m 0755 "$(dirname "$FILE")"
    exit 0
fi
old="$(present)"
if [[ -n "$SHOW" ]]; then
    printf '%s' "${old:+$old$'\n'}"
    exit 0
fi
IFS= read -r key || true
[[ "$key" =~ ^[A-Za-z0-9._~+/=-]+$ ]] || fail "no key was given: write one line of letters and digits to its standard input"
if [[ -n "$old" ]]; then
    [[ "$old" == "$key" ]] || fail "$FILE has another $NAME: all hosts need the same. Take that one for all, or remove its line here, and restart the units"
    say "the key is in $FILE already"
    exit 0
fi
install -d -m 0755 "$(dirname "$FILE")"
umask 077
fresh="$(mktemp "$FILE.XXXXXX")"
trap 'rm -f "$fresh"' EXIT
if [[ -f "$FILE" ]]; then
    # An empty one goes; a last line without its end gets it.
    awk -v name="$NAME=" 'index($0, name) != 1' "$FILE" > "$fresh"
fi
printf '%s=%s\n' "$NAME" "$key" >> "$fresh"
mv "$fresh" "$FILE"
say "the key is in $FILE now"
