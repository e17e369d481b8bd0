#!/usr/bin/env bash
# What a request of 500 B costs the door and nginx outside of the kernel, in instructions: a figure that other programs on the machine
# do not change.
#
#   tests/bench/door/instructions.sh build/release/bin/door_alone [CONNECTIONS]
# Needs nginx, wrk, valgrind. Counts from when every connection is warm.
set -euo pipefail
door_alone=$(realpath "$1")
connections=${2:-4}
work=$(mktemp -d)
pids=()
cleanup() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

free_port() { python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])'; }
answers() { for _ in $(seq 300); do (: </dev/tcp/127.0.0.1/"$1") 2>/dev/null && return; sleep 0.1; done; return 1; }

conf() {  # name, location; prints the file
  mkdir "$work/$1"
  cat >"$work/$1.conf" <<CONF
worker_processes 1; master_process off; daemon off; pid $work/$1/pid; error_log $work/$1/error.log;
events { worker_connections 1000; }
http {
  access_log off; client_body_temp_path $work/$1/a; proxy_temp_path $work/$1/b; fastcgi_temp_path $work/$1/c;
  uwsgi_temp_path $work/$1/d; scgi_temp_path $work/$1/e; keepalive_requests 1000000;
  upstream engine { server 127.0.0.1:$engine_port; keepalive 256; keepalive_requests 1000000; }
  server { listen 127.0.0.1:$3; location / { $2 } }
}
CONF
  echo "$work/$1.conf"
}

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
nginx -c "$(conf engine 'default_type application/json; return 200 "{\"id\":\"x\",\"choices\":[{\"index\":0,\"text\":\"hello world\"}]}";' \
  "$engine_port")" 2>/dev/null & pids+=($!)
nginx_port=$(free_port)
pass='proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;'
"${counted[@]}" --callgrind-out-file="$work/nginx.out" nginx -c "$(conf nginx "$pass" "$nginx_port")" 2>/dev/null & nginx_pid=$!; pids+=($!)
mkfifo "$work/stdin"
"${counted[@]}" --callgrind-out-file="$work/door.out" "$door_alone" "$engine_port" vllm 1 <"$work/stdin" >"$work/port" & door_pid=$!; pids+=($!)
exec 3>"$work/stdin"  # the door serves as long as this end is open
answers "$engine_port"
answers "$nginx_port"
for _ in $(seq 300); do [ -s "$work/port" ] && break; sleep 0.1; done
measure nginx "$nginx_pid" "$nginx_port"
measure door "$door_pid" "$(head -1 "$work/port")"
