"""The service: decisions over HTTP, and the administration of rules. Knows the command line not."""
