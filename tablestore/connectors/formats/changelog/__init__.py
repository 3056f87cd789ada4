"""The changelog formats: JSON messages that change data capture tools write, each of which is one or more changes."""
