"""`python -m symbayes`, where the command `symbayes` is not on the path."""

from symbayes.cli.app import app

if __name__ == "__main__":
    app(prog_name="symbayes")
