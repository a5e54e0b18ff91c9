"""The exceptions of our own: a number that is not a number, and a posterior that there is not."""


class NotFiniteError(ArithmeticError):
    """A loss, a factor or an eigenvalue is NaN or infinite, or training diverged; the message says where, and what to do."""


class NoPosteriorError(ValueError):
    """There is no distribution of the weights; the message says why, and what to do."""
