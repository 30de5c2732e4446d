#!/bin/bash
# VNN-COMP: run_instance.sh v1 BENCHMARK NETWORK PROPERTY RESULTS SECONDS
# RESULTS gets one word (sat, unsat, unknown, timeout or error), and after sat the counterexample.
set -euo pipefail
[ "${1:-}" = v1 ] || { echo "expected version v1, got '${1:-}'" >&2; exit 1; }
network=$3 property=$4
[ -e "$network" ] || network=$network.gz
[ -e "$property" ] || property=$property.gz
exec "${LIPGRAFT_PYTHON:-python3}" -m lipgraft vnnlib "$network" "$property" --results "$5" --timeout "$6"
