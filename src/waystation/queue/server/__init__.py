"""One storage server: connections, subscriptions, commands and their driver."""
