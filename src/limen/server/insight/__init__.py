"""What the service sees of its own decisions: counted, shared between workers, and told."""
