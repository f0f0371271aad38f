"""Many sequences at once, in blocks of one cache."""
