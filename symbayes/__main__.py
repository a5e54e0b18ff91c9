"""`python -m symbayes`: the command `symbayes`, where it is not on the path, and as torchrun starts it."""

from symbayes.cli.app import app

if __name__ == "__main__":
    app(prog_name="symbayes")
