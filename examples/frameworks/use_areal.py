"""AReaL's rollout engine with LoRA through Lorry: what stands in place of `RemoteSGLangEngine(config.rollout)` in an SPMD training script
of your own. AReaL's PPOTrainer is none: it trains LoRA under its single controller alone, which takes doors by its own calls (docs/COMPATIBILITY.md).

The script goes on as it was: actor.connect_engine(rollout, meta), actor.update_weights(meta.with_version(v)), rollout.set_version(v).
"""


def connect(config, lora_name, doors, rank, initial_lora):
    """A RemoteSGLangEngine, or with `config.backend` "vllm:..." a RemotevLLMEngine. `doors`: host:port of each; `rank`: of this trainer process;
    `initial_lora`: where rank 0 has saved the adapter that training begins with. The other ranks call it once rank 0 has."""
    # >>> Lorry
    import lorry
    from lorry.areal import keep_policy, rollout_engine

    run = None
    if rank == 0:  # which updates weights, as in AReaL
        with lorry.Admin() as admin:
            admin.create(lora_name, keep_policy(config.max_head_offpolicyness + 2))
        run = lorry.open_run(lora_name, group=lorry.ALONE)
        run.publish(initial_lora, version=0).wait("serving", 300)
    rollout = rollout_engine(config, run)
    rollout.initialize(addr=doors, train_data_parallel_size=1)
    # <<<
    return rollout
