"""Scripts that derive the data that is committed from public packages; tests check that both agree."""
