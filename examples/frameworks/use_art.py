"""ART's model service with adapters through Lorry: what is added once a backend has started the service, whose requests go to a door."""


async def connect(service, adapter, max_steps_off_policy):
    """`max_steps_off_policy`: the PipelineTrainer's, 4 unless it is given."""
    # >>> Lorry
    import lorry
    from lorry.art import Transport, keep_policy

    admin = lorry.Admin()
    admin.create(adapter, keep_policy(max_steps_off_policy))
    transport = Transport(lorry.open_run(adapter), admin)
    await transport.attach(service)
    # <<<
    return transport
