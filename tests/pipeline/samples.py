"""Synthetic traffic whose rows the tests compare: usual, and with every oddity."""

from waystation.pipeline.traffic import Traffic

USUAL = Traffic(seed=7, messages=2_345, days=2)
ODD = Traffic(
    seed=8,
    messages=2_345,
    repeats=50,
    late=40,
    disordered=60,
    endless=70,
    lossy=30,
    skew_ms=1_500,
    restarts=1,
)
