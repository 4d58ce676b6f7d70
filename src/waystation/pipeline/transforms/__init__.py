"""Functions from frames to frames: the computations of the jobs, without reads or writes."""
