"""The exceptions of our own: a number that is not a number, a posterior that there is not, a folder that is in use."""


class NotFiniteError(ArithmeticError):
    """A loss, a factor or an eigenvalue is NaN or infinite, or training diverged; the message says where, and what to do."""


class NoPosteriorError(ValueError):
    """There is no distribution of the weights; the message says why, and what to do."""


class BusyError(RuntimeError):
    """Another process is at work in the same folder; the message says where, and what to do."""
