"""`python -m symbayes`, as the command `symbayes`; and as torchrun starts it."""

from symbayes.cli.app import app

if __name__ == "__main__":
    app()
