#!/usr/bin/env bash
# Reads what pip prints and says every few seconds how far it is:
#
#     pip install ... | scripts/pip_progress.sh PACKAGES [SECONDS]
#
# PACKAGES is how many pip may look for; the lock has some for other systems. Quick work prints nothing. The lines are
# plain, so a log can hold them. pip's errors go to standard error, past this script.
set -euo pipefail

total=$1
seconds_between=${2:-10}
found=0
doing="looking for packages"
said=$SECONDS
rest=

while true; do
    status=0
    IFS= read -r -t "$seconds_between" line || status=$?
    # A status above 128 is the time-out of `read`. Any other failure is the end of pip's output.
    if ((status > 0 && status <= 128)); then
        break
    fi
    # At a time-out, `line` may hold the beginning of a line.
    line=$rest$line
    rest=
    if ((status > 128)); then
        rest=$line
    else
        case $line in
            "Collecting "* | "Requirement already satisfied: "*)
                found=$((found + 1))
                name=${line#Collecting }
                name=${name#Requirement already satisfied: }
                doing="$found of at most $total packages found, the last is ${name%%[= ]*}"
                ;;
            "Installing collected packages: "*) doing="$found of at most $total packages found, unpacking them" ;;
        esac
    fi
    if ((SECONDS - said >= seconds_between)); then
        echo "  $doing (${SECONDS} s)"
        said=$SECONDS
    fi
done
