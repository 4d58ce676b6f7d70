"""Client of parties: joins, reports who joins and leaves, resumes after broken connections."""
