#!/usr/bin/env bash
# The door beside nginx, both before the same engines, in interleaved rounds of about 30 s.
#
#   tests/bench/door/door.sh build/release/bin/door_alone [ROUNDS]
# One engine answers at once (nginx), one streams (engine.py). Needs nginx, wrk, python3; measure.py has the cases.
here=$(cd "$(dirname "$0")" && pwd)
door_alone=$(realpath "$1")
rounds=${2:-3}
# shellcheck source=tests/bench/door/setup.sh
. "$here/setup.sh"

python3 "$here/engine.py" 20 0.2 >"$work/slow_port" & pids+=($!)
slow_port=$(wait_line "$work/slow_port")
fast_port=$(free_port)
two="worker_processes 2;"
start_nginx engine "$two" "server { listen 127.0.0.1:$fast_port; $answers }"
nginx_port=$(free_port) nginx_slow=$(free_port)
start_nginx proxy "$two" "
  upstream fast { server 127.0.0.1:$fast_port; keepalive 256; keepalive_requests 1000000; }
  upstream slow { server 127.0.0.1:$slow_port; keepalive 64; }
  server { listen 127.0.0.1:$nginx_port; $(passes_to fast) }
  server { listen 127.0.0.1:$nginx_slow; $(passes_to slow) }"
wait_port "$fast_port"
wait_port "$nginx_port"
door_port="" door_slow=""  # set by start_door
start_door door_port "$fast_port" 2
doors=${pids[-1]}
start_door door_slow "$slow_port" 2
doors+=,${pids[-1]}

echo "versions: nginx $(nginx -v 2>&1 | cut -d/ -f2), $(g++ -dumpfullversion 2>/dev/null || echo '?') (g++)"
python3 "$here/measure.py" "$rounds" "direct=$fast_port,$slow_port" \
  "nginx=$nginx_port,$nginx_slow,$(pgrep -d, -P "$(cat "$work/proxy/pid")")" "door=$door_port,$door_slow,$doors"
