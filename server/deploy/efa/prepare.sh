#!/usr/bin/env bash
# Software of a host: EFA, libraries, vLLM, NIXL, Antiphon. May be run again at any time: what is there stays,
# but for Antiphon itself, which is always installed anew.
#
#   sudo ./prepare.sh [--dry-run]
#
# Versions and sources, each an environment variable:
#   VLLM_VERSION NIXL_VERSION EFA_INSTALLER_VERSION PYTHON_VERSION
#   ANTIPHON_PACKAGE   wheel, checkout or requirement; default: the newest antiphon-*.whl beside this script
#   HUGE_PAGES         2 MiB pages to reserve, e.g. 5128; default: none are touched
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

VLLM_VERSION="${VLLM_VERSION:-0.32.0}"
NIXL_VERSION="${NIXL_VERSION:-1.5.1}"
EFA_INSTALLER_VERSION="${EFA_INSTALLER_VERSION:-1.50.0}"
PYTHON_VERSION="${PYTHON_VERSION:-3.12}"
HUGE_PAGES="${HUGE_PAGES:-}"
EFA_URL="${EFA_URL:-https://efa-installer.amazonaws.com/aws-efa-installer-$EFA_INSTALLER_VERSION.tar.gz}"

dry_run_alone "$@"
need_root

check_driver() {
    say "NVIDIA driver"
    if command -v nvidia-smi > /dev/null && nvidia-smi --list-gpus; then
        return
    fi
    if [[ -n "$DRY_RUN" ]]; then
        say "no GPU here: a host of engines needs the driver"
    else
        fail "nvidia-smi finds no GPU: start from an image with the driver (docs/efa.md, step 1), or install it"
    fi
}

install_efa() {
    say "EFA software $EFA_INSTALLER_VERSION"
    if PATH="$PATH:/opt/amazon/efa/bin" timeout 60 fi_info -p efa -t FI_EP_RDM > /dev/null 2>&1; then
        say "fi_info finds EFA: nothing to install"
        return
    fi
    local scratch
    scratch="$(mktemp -d)"
    run curl --fail --silent --show-error --location --output "$scratch/efa.tar.gz" "$EFA_URL"
    run tar --extract --gzip --file "$scratch/efa.tar.gz" --directory "$scratch"
    run bash -c "cd '$scratch/aws-efa-installer' && ./efa_installer.sh -y"
    rm -rf "$scratch"
    run ldconfig
    if [[ -z "$DRY_RUN" ]] && ! timeout 60 /opt/amazon/efa/bin/fi_info -p efa -t FI_EP_RDM > /dev/null; then
        fail "EFA is installed and fi_info finds no device yet: reboot and run this again; if it stays so, the instance has no EFA interface"
    fi
}

install_libraries() {
    # libhwloc: NIXL's LIBFABRIC plug-in loads it, and no wheel carries it. A compiler and Python's headers:
    # kernels are built at run time.
    say "libhwloc, compiler"
    local own=()
    if command -v dnf > /dev/null; then
        command -v uv > /dev/null || own=("python$PYTHON_VERSION" "python$PYTHON_VERSION-devel")
        run dnf install --assumeyes hwloc-libs gcc "${own[@]}"
    else
        command -v uv > /dev/null || own=("python$PYTHON_VERSION-venv" "python$PYTHON_VERSION-dev")
        run apt-get update
        run env DEBIAN_FRONTEND=noninteractive apt-get install --yes libhwloc15 gcc curl "${own[@]}"
    fi
}

reserve_huge_pages() {
    [[ -n "$HUGE_PAGES" ]] || return 0
    [[ "$HUGE_PAGES" =~ ^[0-9]+$ ]] || fail "HUGE_PAGES=$HUGE_PAGES: give a number of 2 MiB pages"
    say "$HUGE_PAGES huge pages; set FI_EFA_USE_HUGE_PAGE: \"1\" in the site's engines.env to use them"
    run bash -c "echo 'vm.nr_hugepages = $HUGE_PAGES' > '$ETC/sysctl.d/90-antiphon.conf'"
    run sysctl --quiet --load "$ETC/sysctl.d/90-antiphon.conf"
}

make_user() {
    say "user antiphon, folders"
    if ! id antiphon > /dev/null 2>&1; then
        run useradd --system --user-group --home-dir /var/lib/antiphon --create-home --shell /usr/sbin/nologin antiphon
    fi
    run install -d -m 0755 "$PREFIX" "$ETC/antiphon"
    run install -d -m 0755 -o antiphon -g antiphon "$CACHE"
}

# The wheel beside this script, unless something else is named.
package() {
    local wheel newest=""
    for wheel in "$HERE"/antiphon-*.whl; do
        if [[ -e "$wheel" && (-z "$newest" || "$wheel" -nt "$newest") ]]; then
            newest="$wheel"
        fi
    done
    if [[ -n "${ANTIPHON_PACKAGE:-}" ]]; then
        newest="$ANTIPHON_PACKAGE"
    elif [[ -z "$newest" && -n "$DRY_RUN" ]]; then
        newest="$HERE/antiphon-VERSION-py3-none-any.whl"
    elif [[ -z "$newest" ]]; then
        fail "no antiphon-*.whl in $HERE: copy one here, or set ANTIPHON_PACKAGE"
    fi
    printf '%s' "$newest"
}

install_packages() {
    local python="$PREFIX/venv/bin/python" wanted
    wanted="$(package)"
    local packages=("${wanted}[router,bench]")
    if [[ -n "$ENGINES" ]]; then
        packages=("vllm==$VLLM_VERSION" "nixl==$NIXL_VERSION" "${wanted}[router,engine,bench]")
    fi
    say "${packages[*]} in $PREFIX/venv"
    if command -v uv > /dev/null; then
        [[ -x "$python" ]] || run uv venv --python "$PYTHON_VERSION" "$PREFIX/venv"
        run uv pip install --python "$python" --reinstall-package antiphon "${packages[@]}"
        return
    fi
    if [[ ! -x "$python" ]]; then
        if [[ -z "$DRY_RUN" ]] && ! command -v "python$PYTHON_VERSION" > /dev/null; then
            fail "no python$PYTHON_VERSION: install uv, or set PYTHON_VERSION to one that is there (3.11 or later)"
        fi
        run "python$PYTHON_VERSION" -m venv "$PREFIX/venv"
    fi
    run "$python" -m pip install --disable-pip-version-check "${packages[@]}"
    # pip takes another wheel of the same version for the one that is there.
    run "$python" -m pip install --disable-pip-version-check --no-deps --force-reinstall "$wanted"
}

if [[ -n "$ENGINES" && "$PRESET" != cpu ]]; then
    check_driver
fi
install_libraries
if [[ -n "$ENGINES" && "$PRESET" == efa ]]; then
    install_efa
    reserve_huge_pages
fi
make_user
install_packages
say "prepared"
