"""``python -m tablestore``: the command line."""

from tablestore.cli import app

app(prog_name="python -m tablestore")
