#!/bin/sh
# Stored image -> one and two receivers, and -> two proxies by the programs themselves, beside memcpy and ucx_perftest,
# interleaved.
#   BIN_DIR=build/release/bin tests/bench/transfer.sh [ROUNDS]
# ucx_perftest runs with the same UCX settings and with peer errors, as Lorry does.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$root/.venv/dev/bin/python
bin=${BIN_DIR:-build/release/bin}
rounds=${1:-12}

# Reads ucx_perftest's last line: overall bandwidth in MB/s (2^20 bytes), and prints GB/s (10^9).
peer=$(cat <<'PEER'
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
# tcp finds the peer; get_zcopy keeps the bytes off it, as Lorry does by having no such lane.
export UCX_TLS=posix,tcp UCX_NET_DEVICES=lo UCX_RNDV_SCHEME=get_zcopy UCX_MM_ERROR_HANDLING=y UCX_MM_FIFO_SIZE=256
export UCX_WARN_UNUSED_ENV_VARS=n
ucx_perftest -p "$port" >/dev/null 2>&1 & server=$!
for attempt in 1 2 3 4 5 6 7 8 9 10; do
  result=$(ucx_perftest 127.0.0.1 -p "$port" -t ucp_am_bw -s 4194304 -n 200 -w 20 -e -E sleep -O 8 2>/dev/null |
           awk '/^Final:/ { print $7 * 1048576 / 1e9 }')
  [ -n "$result" ] && break
  sleep 0.1
done
kill "$server" 2>/dev/null; wait "$server" 2>/dev/null
echo "${result:-0}"
PEER
)

export PYTHONPATH="$root/tests:$root/clients/python/src"
"$python" -B "$root/clients/python/generate.py"
fleet="'$python' -B '$root/tests/bench/transfer/end_to_end.py' '$bin'"
"$bin/transfer_bench" ucx-shm "$rounds" "$peer" "$fleet"
"$bin/transfer_bench" grpc "$rounds"
