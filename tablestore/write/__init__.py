"""The write path: prepare, stage, commit, publish, index; and recovery."""
