"""ART's model service with adapters through Lorry: what is added once a backend has made the service, whose requests go to a door."""


async def connect(service, adapter):
    # >>> Lorry
    import lorry
    from lorry.art import Transport

    transport = Transport(lorry.open_run(adapter), lorry.Admin())
    transport.attach(service)
    # <<<
    return transport
