#!/usr/bin/env bash
# What a request of 500 B costs the door and nginx outside of the kernel, in instructions: a figure that other programs on the machine
# do not change.
#
#   tests/bench/door/instructions.sh build/release/bin/door_alone [CONNECTIONS]
# Needs nginx, wrk, valgrind. Counts from when every connection is warm.
here=$(cd "$(dirname "$0")" && pwd)
door_alone=$(realpath "$1")
connections=${2:-4}
# shellcheck source=tests/bench/door/setup.sh
. "$here/setup.sh"

cat >"$work/wrk.lua" <<'LUA'
wrk.method = "POST"
wrk.path = "/v1/completions"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"model": "policy", "prompt": "' .. string.rep("a", 500) .. '", "max_tokens": 16}'
LUA
load() { wrk -t1 -c"$connections" -d"$2s" -s "$work/wrk.lua" "http://127.0.0.1:$1" | awk '/requests in/ {print $1}'; }
counted=(valgrind -q --tool=callgrind --instr-atstart=no)

measure() {  # name, pid, port
  load "$3" 2 >/dev/null
  callgrind_control -i on "$2" >/dev/null 2>&1
  local requests
  requests=$(load "$3" 4)
  callgrind_control -i off "$2" >/dev/null 2>&1
  callgrind_control -d "$2" >/dev/null 2>&1
  awk -v n="$requests" -v name="$1" '/^(summary|totals):/ {sum += $2} END {printf "%s: %d instructions a request, over %d requests\n", name, sum / n, n}' \
    "$work/$1.out".*
}

engine_port=$(free_port)
one="worker_processes 1; master_process off;"  # in the process that is counted
start_nginx engine "$one" "server { listen 127.0.0.1:$engine_port; $answers }"
nginx_port=$(free_port)
proxy=$(nginx_conf proxy "$one" "
  upstream engine { server 127.0.0.1:$engine_port; keepalive 256; keepalive_requests 1000000; }
  server { listen 127.0.0.1:$nginx_port; $(passes_to engine) }")
"${counted[@]}" --callgrind-out-file="$work/nginx.out" nginx -c "$proxy" 2>/dev/null & nginx_pid=$!; pids+=("$nginx_pid")
wait_port "$engine_port"
wait_port "$nginx_port"
door_port=""  # set by start_door
start_door door_port "$engine_port" 1 "${counted[@]}" --callgrind-out-file="$work/door.out"
measure nginx "$nginx_pid" "$nginx_port"
measure door "${pids[-1]}" "$door_port"
