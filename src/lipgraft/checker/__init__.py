"""The checker of certificates: a second opinion that shares no code with what found the proofs.

`reader` makes a `network` of an ONNX file, `certificate` reads a proof, `bounds` has the arithmetic and why it holds,
`check` gives the verdict, `folder` all of them, `follow` those that are still being found, `exact` repeats leaves
without rounding. See docs/proofs.md.
"""

from lipgraft.checker.folder import Outcome, check_file, check_folder
from lipgraft.checker.network import Rejected
from lipgraft.checker.reader import read_network

__all__ = ["Outcome", "Rejected", "check_file", "check_folder", "read_network"]
