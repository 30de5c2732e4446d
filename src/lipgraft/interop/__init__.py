"""ONNX and VNNLIB, in and out. onnx and onnxruntime are imported when a file is first touched."""

from lipgraft.interop.bundle import Bundle, export_bundle, robustness_vnnlib
from lipgraft.interop.certificates import CertificateFolder
from lipgraft.interop.errors import VnnlibError
from lipgraft.interop.export import export_onnx
from lipgraft.interop.instances import Decide, Instance, InstancesSummary, found_file, read_instances, verify_instances
from lipgraft.interop.load import load_onnx
from lipgraft.interop.module import OnnxNetwork
from lipgraft.interop.onnx_file import fingerprint_onnx
from lipgraft.interop.replay import Counterexample
from lipgraft.interop.result import VnnResult
from lipgraft.interop.results_table import InstanceResult
from lipgraft.interop.runtime import OnnxRuntime
from lipgraft.interop.specification import Conjunction, Region, Specification
from lipgraft.interop.verify import verify_vnnlib
from lipgraft.interop.vnnlib import parse_vnnlib, read_vnnlib
from lipgraft.models import FORMATS, FileFormat

FORMATS[".onnx"] = FileFormat(load_onnx, export_onnx)

__all__ = [
    "Bundle",
    "CertificateFolder",
    "Conjunction",
    "Counterexample",
    "Decide",
    "Instance",
    "InstanceResult",
    "InstancesSummary",
    "OnnxNetwork",
    "OnnxRuntime",
    "Region",
    "Specification",
    "VnnResult",
    "VnnlibError",
    "export_bundle",
    "export_onnx",
    "fingerprint_onnx",
    "found_file",
    "load_onnx",
    "parse_vnnlib",
    "read_instances",
    "read_vnnlib",
    "robustness_vnnlib",
    "verify_instances",
    "verify_vnnlib",
]
