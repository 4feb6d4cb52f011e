"""What is kept on decode between turns: leases, budget, value, pressure."""
