"""AstraFlow's RaaS with LoRA through Lorry: what is added where its manager has made the engines, whose addresses are doors.

In one RaaS process: the run that a second one opens fences the first.
"""


def connect(engine, eval_engine, adapter, initial_lora):
    """`initial_lora`: where the adapter lies that training begins with. Until something is loaded AstraFlow's requests name no adapter, and doors refuse them."""
    # >>> Lorry
    import lorry
    from lorry.astraflow import adopt

    adopt(engine, lorry.open_run(adapter), evals=[eval_engine])
    engine.load_weights_from_path(initial_lora, use_lora=True)
    # <<<
