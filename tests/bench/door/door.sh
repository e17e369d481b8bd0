#!/usr/bin/env bash
# The door beside nginx, both before the same engines, in interleaved rounds of about 30 s.
#
#   tests/bench/door/door.sh build/release/bin/door_alone [ROUNDS]
# One engine answers at once (nginx), one streams (engine.py). Needs nginx, wrk, python3; measure.py has the cases.
set -euo pipefail
door_alone=$(realpath "$1")
rounds=${2:-3}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
pids=()
cleanup() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

free_port() { python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])'; }
wait_port() { for _ in $(seq 100); do (: </dev/tcp/127.0.0.1/"$1") 2>/dev/null && return; sleep 0.05; done; return 1; }

start_nginx() {  # name, listen port, location; and another port and location
  local second="" location=${5:-}
  [ -z "${4:-}" ] || second="server { listen 127.0.0.1:$4; $location }"
  mkdir -p "$work/$1"
  cat >"$work/$1/nginx.conf" <<CONF
worker_processes 2; worker_rlimit_nofile 8192; daemon off; pid $work/$1/pid; error_log $work/$1/error.log;
events { worker_connections 8000; }
http {
  access_log off; client_body_temp_path $work/$1/a; proxy_temp_path $work/$1/b; fastcgi_temp_path $work/$1/c;
  uwsgi_temp_path $work/$1/d; scgi_temp_path $work/$1/e; keepalive_requests 1000000; client_body_buffer_size 1m;
  upstream fast { server 127.0.0.1:$fast_port; keepalive 256; keepalive_requests 1000000; }
  upstream slow { server 127.0.0.1:$slow_port; keepalive 64; }
  server { listen 127.0.0.1:$2; $3 }
  $second
}
CONF
  nginx -c "$work/$1/nginx.conf" 2>/dev/null & pids+=($!)
  wait_port "$2"
}
workers() { pgrep -d, -P "$(cat "$work/$1/pid")"; }  # of an nginx, by its name
door_port="" door_slow="" door_pids=""  # set by start_door
start_door() {  # variable for the port, engine's port
  mkfifo "$work/stdin$2"
  "$door_alone" "$2" vllm 2 <"$work/stdin$2" >"$work/port$2" & pids+=($!) door_pids+=,$!
  local hold
  # shellcheck disable=SC2034  # the door serves as long as this end is open
  exec {hold}>"$work/stdin$2"
  for _ in $(seq 100); do [ -s "$work/port$2" ] && break; sleep 0.05; done
  printf -v "$1" '%s' "$(head -1 "$work/port$2")"
}

python3 "$here/engine.py" 20 0.2 >"$work/slow_port" & pids+=($!)
for _ in $(seq 100); do [ -s "$work/slow_port" ] && break; sleep 0.05; done
slow_port=$(cat "$work/slow_port")
fast_port=$(free_port)
start_nginx engine "$fast_port" 'location / { default_type application/json; return 200 "{\"id\":\"x\",\"choices\":[{\"index\":0,\"text\":\"hello world\"}]}"; }'
pass='proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;'
nginx_port=$(free_port) nginx_slow=$(free_port)
start_nginx proxy "$nginx_port" "location / { proxy_pass http://fast; $pass }" "$nginx_slow" "location / { proxy_pass http://slow; $pass }"
start_door door_port "$fast_port"
start_door door_slow "$slow_port"

echo "versions: nginx $(nginx -v 2>&1 | cut -d/ -f2), $(g++ -dumpfullversion 2>/dev/null || echo '?') (g++)"
python3 "$here/measure.py" "$rounds" "direct=$fast_port,$slow_port" "nginx=$nginx_port,$nginx_slow,$(workers proxy)" \
  "door=$door_port,$door_slow$door_pids"
