"""The checker of certificates: a second opinion that shares no code with what found the proofs.

`network` reads ONNX, `certificate` reads a proof, `bounds` has the arithmetic and the argument why it is sound, `check`
the verdict, `exact` repeats leaves without any rounding. NumPy does the sums; docs/proofs.md says what is proved.
"""

from lipgraft.checker.check import Outcome, check_file, check_folder
from lipgraft.checker.network import Rejected, read_network

__all__ = ["Outcome", "Rejected", "check_file", "check_folder", "read_network"]
