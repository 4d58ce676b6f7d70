"""One storage server: connections, subscriptions, commands, and the shell around them."""
