#!/bin/bash
# VNN-COMP: install_tool.sh v1
# Installs lipgraft from the checkout that this file stands in, with what ONNX files need.
set -euo pipefail
[ "${1:-}" = v1 ] || { echo "expected version v1, got '${1:-}'" >&2; exit 1; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"${LIPGRAFT_PYTHON:-python3}" -m pip install "$here[onnx]"
"${LIPGRAFT_PYTHON:-python3}" -m lipgraft --version
