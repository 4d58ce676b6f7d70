"""A client of SMP servers: simplex queues, written from the protocol alone.

Nothing here is shared with `waystation.queue`, so that a mistake made on one side shows on the
other. `QueueClient` is the way in; the modules below it know no socket.
"""
