#!/usr/bin/env bash
# Runs shellcheck over every shell script of the tree, found by its first line, and over what they source.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mapfile -t scripts < <(git ls-files -z | xargs -0 grep -lIE -m1 '^#!.*\b(bash|sh)$')
existing=()
for script in "${scripts[@]}"; do [ ! -f "$script" ] || existing+=("$script"); done
shellcheck --external-sources --severity=warning "${existing[@]}"
echo "${#existing[@]} scripts, no finding"
