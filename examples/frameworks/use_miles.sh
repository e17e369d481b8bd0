# miles' command line for an adapter that goes to external engines through Lorry; rollouts ask doors for miles_lora, the one name that
# miles has, so give each training a fleet of its own. The run is opened in a Ray worker, which has the environment of its `ray start` and not this shell's:
# give LORRY_STORE, LORRY_ORCHESTRATOR and where there are tokens LORRY_TOKEN_FILE and LORRY_CA_FILE to `ray start` on each node, or in the runtime
# environment of the job (`ray job submit --runtime-env-json '{"env_vars": {"LORRY_STORE": "store-host:7400", ...}}'`).
# >>> Lorry
python train.py "$@" --rollout-external --lora-rank 32 --lora-alpha 64 --target-modules all-linear \
  --update-weight-transfer-mode external --custom-weight-transfer-protocol-path lorry.miles.protocol
# <<<
