#!/bin/sh
# start.sh ROLE: what a container runs, and what runs without containers from the same environment file (docs/operating.md).
set -eu
tokens=${LEYDEN_TOKENS:-/run/leyden}

# A token for each role, in a directory of its own, made once: token ROLE SCOPE...
token() {
    role=$1
    shift
    [ -s "$tokens/$role/token" ] && return
    for scope in "$@"; do
        set -- "$@" --scope "$scope"
        shift
    done
    mkdir -p "$tokens/$role"
    (umask 077 && leyden token create "$role" "$@" >"$tokens/$role/partial")
    mv "$tokens/$role/partial" "$tokens/$role/token"
}

as() {
    LEYDEN_TOKEN=$(cat "$tokens/$1/token")
    export LEYDEN_TOKEN
}

case ${1:-} in
tokens)
    token admin admin
    token runner claim ingest
    token proxy ingest resources
    token prometheus read
    ;;
store)
    exec leyden store --host "${LEYDEN_HOST:-0.0.0.0}" --port "${LEYDEN_PORT:-4747}" --log-format json
    ;;
runners)
    as runner
    exec leyden runners "$LEYDEN_AGENT" -n "${LEYDEN_RUNNERS:-4}" --concurrency "${LEYDEN_CONCURRENCY:-16}" --grace 60
    ;;
proxy)
    as proxy
    exec python "$(dirname "$0")/proxy.py"
    ;;
*)
    echo "error: no role '${1:-}'" >&2
    echo "hint: one of tokens, store, runners, proxy" >&2
    exit 2
    ;;
esac
