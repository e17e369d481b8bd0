"""What adapter syncs cost on an engine of yours: ``lorry bench-sync``, or ``python -m lorry.bench``."""
