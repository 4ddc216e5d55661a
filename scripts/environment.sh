#!/usr/bin/env bash
# Makes .venv from requirements.lock: scripts/environment.sh [FOLDER]
#
# Every package is checked against the lock's hashes, then the project itself is installed editable. Rerunning it is
# cheap: what is already installed is left alone. PYTHON names another interpreter; by default the first of python3,
# python3.13, python3.12 and python3.11 that is new enough is taken.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=${1:-.venv}

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

if [[ -n ${PYTHON:-} ]]; then
    candidates=("$PYTHON")
else
    candidates=(python3 python3.13 python3.12 python3.11)
fi
python=
for candidate in "${candidates[@]}"; do
    if new_enough "$candidate"; then
        python=$candidate
        break
    fi
done
if [[ -z $python ]]; then
    echo "Tidewire needs Python 3.11 or newer, and found none as ${candidates[*]}: install it (Debian: apt-get install python3 python3-venv) or name one with PYTHON=/path/to/python3." >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "Tidewire needs Python's venv module, which $python lacks: install it (Debian: apt-get install python3-venv)." >&2
    exit 1
fi

if ! new_enough "$folder/bin/python" || ! "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
    "$python" -m venv --clear "$folder"
fi
echo "Installing the packages of requirements.lock into $folder (minutes the first time, then seconds)."
pip=("$folder/bin/python" -m pip --disable-pip-version-check)
# --no-deps: the lock is complete, so there is nothing to resolve.
"${pip[@]}" install --progress-bar off --require-hashes --no-deps --requirement requirements.lock |
    scripts/pip_progress.sh "$(grep -c '^[a-z0-9].*==' requirements.lock)"
# The build backend is in the lock too, so the project's own installation downloads nothing.
"${pip[@]}" --quiet install --no-deps --no-build-isolation --editable .
