"""Two real engines, Lorry's services, a training loop that learns, and a ledger that holds every answer to account."""
