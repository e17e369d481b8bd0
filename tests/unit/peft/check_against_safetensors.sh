#!/bin/sh
# usage: check_against_safetensors.sh PYTHON LAYOUT_TOOL. Exit 77 = skipped.
if ! "$1" -c 'import safetensors, numpy, ml_dtypes, xxhash' 2>/dev/null; then
  echo "skipped: $1 is missing or lacks one of safetensors, numpy, ml_dtypes, xxhash"
  exit 77
fi
exec "$1" "$(dirname "$0")/check_against_safetensors.py" "$2"
