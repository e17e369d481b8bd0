#!/bin/sh
# usage: check_docs.sh LORRY FILE: fails, and says how to mend it, where FILE is not what `lorry help --markdown` prints.
set -eu
if ! "$1" help --markdown | diff -u "$2" -; then
  echo "docs/CLI.md is out of date: lorry help --markdown > docs/CLI.md" >&2
  exit 1
fi
