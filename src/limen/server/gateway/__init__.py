"""What gateways ask before they let a request through: `/v1/auth`."""
