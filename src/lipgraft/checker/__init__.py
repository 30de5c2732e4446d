"""The checker of certificates: a second opinion that shares no code with what found the proofs.

`reader` reads ONNX into a `network`, `certificate` reads a proof, `bounds` has the arithmetic and the argument why it is
sound, `check` the verdict, `exact` repeats leaves without any rounding. docs/proofs.md says what is proved.
"""

from lipgraft.checker.check import Outcome, check_file, check_folder
from lipgraft.checker.network import Rejected
from lipgraft.checker.reader import read_network

__all__ = ["Outcome", "Rejected", "check_file", "check_folder", "read_network"]
