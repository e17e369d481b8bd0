# miles' command line for an adapter that goes to external engines through Lorry; rollouts ask doors for miles_lora, the one name that
# miles has, so give each training a fleet of its own.
# >>> Lorry
python train.py "$@" --rollout-external --lora-rank 32 --lora-alpha 64 --target-modules all-linear \
  --update-weight-transfer-mode external --custom-weight-transfer-protocol-path lorry.miles.protocol
# <<<
