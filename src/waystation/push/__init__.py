"""Web Push: connection nodes hold the user agents, endpoint nodes take what app servers post."""
