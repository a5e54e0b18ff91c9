"""The one exception of our own: a number that is not a number."""


class NotFiniteError(ArithmeticError):
    """A loss, a factor or an eigenvalue is NaN or infinite; the message says where, and what to do."""
