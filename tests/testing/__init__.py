"""What Python tests and the demo share. Standard library only, so that any Python 3.11 can import it."""
