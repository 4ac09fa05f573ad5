"""Errors, a class for each of TensorFlow's codes.

>>> import ferroflow
>>> try:
...     ferroflow.ops.Reshape([1.0, 2.0, 3.0], [2, 2])
... except ferroflow.errors.InvalidArgumentError as e:
...     print(e.code, e.node)
3 Reshape
"""


class OpError(Exception):
    """The base class of all errors."""

    code = 2

    def __init__(self, message, node=None, code=None):
        super().__init__(message)
        self.message = message
        self.node = node
        """The node at fault, or None."""
        if code is not None:
            self.code = code

    def __reduce__(self):
        return type(self), (self.message, self.node, self.code)

    def __str__(self):
        if self.node is None:
            return self.message
        return f"{self.message}\n\t [[{{{{node {self.node}}}}}]]"


def _class(name, code, about):
    return type(name, (OpError,), {"code": code, "__doc__": about, "__module__": __name__})


CancelledError = _class("CancelledError", 1, "The step was cancelled.")
UnknownError = _class("UnknownError", 2, "An error without a better code.")
InvalidArgumentError = _class("InvalidArgumentError", 3, "An argument is wrong.")
DeadlineExceededError = _class("DeadlineExceededError", 4, "The step took longer than its timeout.")
NotFoundError = _class("NotFoundError", 5, "A file, node, op or key does not exist.")
AlreadyExistsError = _class("AlreadyExistsError", 6, "What is to be made exists.")
PermissionDeniedError = _class("PermissionDeniedError", 7, "The operation is not permitted.")
ResourceExhaustedError = _class("ResourceExhaustedError", 8, "Memory or another resource ran out.")
FailedPreconditionError = _class("FailedPreconditionError", 9, "State is not what the operation needs.")
AbortedError = _class("AbortedError", 10, "The operation was aborted.")
OutOfRangeError = _class("OutOfRangeError", 11, "The end of a dataset, queue or range was reached.")
UnimplementedError = _class("UnimplementedError", 12, "The operation is not implemented.")
InternalError = _class("InternalError", 13, "An invariant was broken.")
UnavailableError = _class("UnavailableError", 14, "A service is unavailable.")
DataLossError = _class("DataLossError", 15, "A file is damaged.")
UnauthenticatedError = _class("UnauthenticatedError", 16, "The caller is not authenticated.")

_CLASSES = {c.code: c for c in OpError.__subclasses__()}


def _of(code, message, node):
    return _CLASSES.get(code, OpError)(message, node, code)
