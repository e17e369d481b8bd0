"""ART's model service with adapters through Lorry: what is added once a backend has started the service, whose requests go to a door."""


async def connect(service, adapter):
    # >>> Lorry
    import lorry
    from lorry.art import Transport

    transport = Transport(lorry.open_run(adapter), lorry.Admin())
    await transport.attach(service)
    # <<<
    return transport
