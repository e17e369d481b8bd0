#!/bin/sh
# usage: check_completion.sh LORRY: sources what `lorry completion bash` prints, and completes as the Tab key would.
set -eu
lorry=$1
status=0

# completes TYPED EXPECTED: what bash offers for the last word typed.
completes() {
  got=$(bash --norc -c 'source <("$1" completion bash); COMP_WORDS=($2); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _lorry; echo "${COMPREPLY[*]}"' - "$lorry" "$1")
  [ "$got" = "$2" ] || { echo "bash: \"$1\" gives \"$got\" and not \"$2\"" >&2; status=1; }
}

completes "lorry pub" "publish"
completes "lorry --json roll" "rollback"
completes "lorry publish --wait s" "stored serving"
completes "lorry publish --ver" "--version"
completes "lorry rollback policy --tls-c" "--tls-ca --tls-cert"
completes "lorry help wat" "watch"
completes "lorry publish out/st" ""

exit $status
