"""The connection node: who is connected, and what each still owes us an ack for."""
