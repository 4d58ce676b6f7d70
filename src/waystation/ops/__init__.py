"""Operations: health, status, metrics, doctor and self-test of a node."""
