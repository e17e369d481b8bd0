# shellcheck shell=bash
# Sourced by door.sh and instructions.sh, which set $door_alone: a folder and programs that go when the script ends, nginx as an engine
# and as a proxy, and doors.
set -euo pipefail
work=$(mktemp -d)
pids=()
cleanup() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

free_port() { python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])'; }
wait_port() { for _ in $(seq 300); do (: </dev/tcp/127.0.0.1/"$1") 2>/dev/null && return; sleep 0.1; done; return 1; }
wait_line() { for _ in $(seq 300); do [ -s "$1" ] && break; sleep 0.1; done; head -1 "$1"; }

# The locations of an engine that answers at once, and of a proxy before an upstream.
answers='location / { default_type application/json; return 200 "{\"id\":\"x\",\"choices\":[{\"index\":0,\"text\":\"hello world\"}]}"; }'
passes_to() { echo "location / { proxy_pass http://$1; proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_buffering off; }"; }

# name, "workers N;" or what else, http: writes a configuration and prints its file.
nginx_conf() {
  mkdir -p "$work/$1"
  cat >"$work/$1/nginx.conf" <<CONF
$2 worker_rlimit_nofile 8192; daemon off; pid $work/$1/pid; error_log $work/$1/error.log;
events { worker_connections 8000; }
http {
  access_log off; client_body_temp_path $work/$1/a; proxy_temp_path $work/$1/b; fastcgi_temp_path $work/$1/c;
  uwsgi_temp_path $work/$1/d; scgi_temp_path $work/$1/e; keepalive_requests 1000000; client_body_buffer_size 1m;
  $3
}
CONF
  echo "$work/$1/nginx.conf"
}
start_nginx() {  # as nginx_conf
  nginx -c "$(nginx_conf "$@")" 2>/dev/null & pids+=($!)
}

# variable for its port, engine's port, threads, and before what it runs. Its process is the last of pids.
start_door() {
  local variable=$1 engine=$2 threads=$3 hold
  shift 3
  mkfifo "$work/stdin$engine"
  "$@" "$door_alone" "$engine" vllm "$threads" <"$work/stdin$engine" >"$work/port$engine" & pids+=($!)
  # shellcheck disable=SC2034  # the door serves as long as this end is open
  exec {hold}>"$work/stdin$engine"
  printf -v "$variable" '%s' "$(wait_line "$work/port$engine")"
}
