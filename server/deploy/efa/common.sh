# shellcheck shell=bash
# What the scripts share; they read it. PREFIX, ETC: where software and settings lie.
set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
PREFIX="${PREFIX:-/opt/antiphon}"
ETC="${ETC:-/etc}"
DRY_RUN=""
# Of this host: PRESET, CACHE, ENGINES, ENGINE_URLS (in the same order), ROUTER_URL.
PRESET=efa CACHE=/var/cache/antiphon ENGINES="" ENGINE_URLS="" ROUTER_URL=""
if [[ -f "$HERE/host.env" ]]; then
    # shellcheck source=/dev/null
    source "$HERE/host.env"
fi
export PREFIX ETC PRESET CACHE ENGINES ENGINE_URLS ROUTER_URL

say() { printf '==> %s\n' "$*"; }

fail() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# A command that changes the machine. With --dry-run it is printed.
run() {
    if [[ -n "$DRY_RUN" ]]; then
        printf '+'
        printf ' %q' "$@"
        printf '\n'
    else
        "$@"
    fi
}

# Of scripts that know no other option.
dry_run_alone() {
    case "${1:-}" in
        "") ;;
        --dry-run) DRY_RUN=yes ;;
        *) fail "no option $1: there is --dry-run" ;;
    esac
}

need_root() {
    if [[ -z "$DRY_RUN" && "$(id -u)" != 0 ]]; then
        fail "it changes the machine: run it with sudo, or with --dry-run to see what it would do"
    fi
}

need_host() {
    [[ -f "$HERE/host.env" ]] || fail "no host.env in $HERE: run it in a folder that 'antiphon hosts' wrote"
}

# Units of this host, the router's last.
units() {
    local engine
    for engine in $ENGINES; do
        printf 'antiphon-engine@%s.service\n' "$engine"
    done
    if [[ -n "$ROUTER_URL" ]]; then
        printf 'antiphon-router.service\n'
    fi
}
