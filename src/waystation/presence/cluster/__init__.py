"""Several nodes: leases, handing sessions over, relaying, finding nodes."""
