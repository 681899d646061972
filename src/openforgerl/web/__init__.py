"""The report of a run: one self-contained page, made from the store and the run folder, which it only reads."""
