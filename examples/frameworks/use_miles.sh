# miles' command line for an adapter that goes to external engines through Lorry; rollouts ask doors for math-policy.
# >>> Lorry
export LORRY_MILES_ADAPTER=math-policy
python train.py "$@" --rollout-external --lora-rank 32 --lora-alpha 64 --target-modules all-linear \
  --update-weight-transfer-mode external --custom-weight-transfer-protocol-path lorry.miles.protocol
# <<<
