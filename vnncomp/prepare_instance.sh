#!/bin/bash
# VNN-COMP: prepare_instance.sh v1 BENCHMARK NETWORK PROPERTY
# There is nothing to convert: it only looks whether both files are there, packed or not.
set -euo pipefail
[ "${1:-}" = v1 ] || { echo "expected version v1, got '${1:-}'" >&2; exit 1; }
for file in "$3" "$4"; do
    [ -e "$file" ] || [ -e "$file.gz" ] || { echo "$file is missing" >&2; exit 1; }
done
