#!/usr/bin/env bash
# The door beside nginx, both before the same engine that answers at once, in interleaved rounds (< 60 s).
#
#   tests/bench/door/door.sh build/release/bin/door_alone [ROUNDS]
# Prints requests/s and latency by wrk, and how late the chunks of 50 streams arrive. Needs nginx, wrk, python3.
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

start_nginx() {  # name, listen port, location body
  mkdir -p "$work/$1"
  cat >"$work/$1/nginx.conf" <<CONF
worker_processes 2; daemon off; pid $work/$1/pid; error_log $work/$1/error.log;
events { worker_connections 4096; }
http {
  access_log off; client_body_temp_path $work/$1/a; proxy_temp_path $work/$1/b; fastcgi_temp_path $work/$1/c;
  uwsgi_temp_path $work/$1/d; scgi_temp_path $work/$1/e; keepalive_requests 1000000;
  upstream fast { server 127.0.0.1:$fast_port; keepalive 64; keepalive_requests 1000000; }
  upstream slow { server 127.0.0.1:$slow_port; keepalive 64; }
  server { listen 127.0.0.1:$2; $3 }
}
CONF
  nginx -c "$work/$1/nginx.conf" 2>/dev/null & pids+=($!)
  wait_port "$2"
}
door_port="" door_slow=""  # set by start_door
start_door() {  # variable for the port, engine's port
  mkfifo "$work/stdin$2"
  "$door_alone" "$2" vllm 2 <"$work/stdin$2" >"$work/port$2" & pids+=($!)
  local hold
  # shellcheck disable=SC2034  # the door serves as long as this end is open
  exec {hold}>"$work/stdin$2"
  for _ in $(seq 100); do [ -s "$work/port$2" ] && break; sleep 0.05; done
  printf -v "$1" '%s' "$(head -1 "$work/port$2")"
}

python3 "$here/engine.py" serve >"$work/slow_port" & pids+=($!)
for _ in $(seq 100); do [ -s "$work/slow_port" ] && break; sleep 0.05; done
slow_port=$(cat "$work/slow_port")
fast_port=$(free_port)
start_nginx engine "$fast_port" 'location / { default_type application/json; return 200 "{\"id\":\"x\",\"choices\":[{\"index\":0,\"text\":\"hello world\"}]}"; }'
pass='proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;'
nginx_port=$(free_port); start_nginx proxy "$nginx_port" "location / { proxy_pass http://fast; $pass }"
nginx_slow=$(free_port); start_nginx stream "$nginx_slow" "location / { proxy_pass http://slow; $pass }"
start_door door_port "$fast_port"
start_door door_slow "$slow_port"

cat >"$work/post.lua" <<'LUA'
wrk.method = "POST"
wrk.path = "/v1/completions"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"model":"policy","prompt":"' .. string.rep("a", 500) .. '","max_tokens":16}'
done = function(s, l)
  io.write(string.format("RESULT %.0f %.0f %.0f %d\n", s.requests / (s.duration / 1e6), l:percentile(50),
                         l:percentile(99), s.errors.status + s.errors.connect + s.errors.read + s.errors.timeout))
end
LUA
run() { wrk -t1 -c"$3" -d2s -s "$work/post.lua" "http://127.0.0.1:$2" | awk -v n="$1 c=$3" '/RESULT/{print n, $2, $3, $4, $5}' >>"$work/results"; }

echo "machine: $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg) at the start, $(nginx -v 2>&1 | cut -d/ -f2), $(g++ -dumpfullversion 2>/dev/null || echo '?')"
for _ in $(seq "$rounds"); do
  for connections in 1 16; do
    run direct "$fast_port" $connections
    run nginx "$nginx_port" $connections
    run door "$door_port" $connections
  done
  for pair in "direct $slow_port" "nginx $nginx_slow" "door $door_slow"; do
    # shellcheck disable=SC2086  # name and port
    set -- $pair
    echo "$1 $(python3 "$here/engine.py" measure "$2" 50)" >>"$work/streams"
  done
done
python3 - "$work/results" "$work/streams" <<'PY'
import collections, statistics, sys
table = collections.defaultdict(list)
for line in open(sys.argv[1]):
    name, load, *numbers = line.split()
    table[load, name].append([float(x) for x in numbers])
print(f"{'':8}{'':8}{'requests/s (min med max)':>28}{'p50 us':>9}{'p99 us':>9}{'errors':>8}{'of nginx':>10}")
for (load, name), rows in sorted(table.items()):
    rate, p50, p99, errors = zip(*rows)
    nginx = statistics.median(r[0] for r in table[load, "nginx"])
    print(f"{load:8}{name:8}{min(rate):>10.0f}{statistics.median(rate):>9.0f}{max(rate):>9.0f}"
          f"{statistics.median(p50):>9.0f}{statistics.median(p99):>9.0f}{sum(errors):>8.0f}{statistics.median(rate) / nginx:>10.2f}")
streams = collections.defaultdict(list)
for line in open(sys.argv[2]):
    name, p50, p99 = line.split()
    streams[name].append((float(p50), float(p99)))
for name, rows in streams.items():
    print(f"50 streams, chunk latency, {name:8} p50 {statistics.median(r[0] for r in rows):6.0f} us   p99 {statistics.median(r[1] for r in rows):6.0f} us")
PY
